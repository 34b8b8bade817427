"""Which variables and literals of a script name output files, and where they will go."""

import ast
from dataclasses import dataclass
from typing import Any

from genwright.inspect.analysis.abstract_values import Ref
from genwright.inspect.analysis.cli_options import CommandLine
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.interpreter_values import Unknown

# Functions that write a file: the position and the keyword of its path.
_FUNCTIONS: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("numpy.save", "numpy.savez", "numpy.savez_compressed"), (0, "file")),
    "numpy.savetxt": (0, "fname"),
    "torch.save": (1, "f"),
    "torchaudio.save": (0, "uri"),
    "torchvision.utils.save_image": (1, "fp"),
    "torchvision.io.write_video": (0, "filename"),
    **dict.fromkeys(("cv2.imwrite", "cv2.VideoWriter"), (0, "filename")),
    **dict.fromkeys(("soundfile.write", "skimage.io.imsave"), (0, "file")),
    "scipy.io.wavfile.write": (0, "filename"),
    **dict.fromkeys(("imageio.imwrite", "imageio.mimsave", "imageio.mimwrite", "imageio.v2.imwrite"), (0, "uri")),
    **dict.fromkeys(("diffusers.utils.export_to_video", "diffusers.utils.export_to_gif"), (1, "output_video_path")),
    **dict.fromkeys(("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.move", "os.rename"), (1, "dst")),
    **dict.fromkeys(("joblib.dump", "safetensors.torch.save_file"), (1, "filename")),
}
# Opened for writing when the mode says so: the path first, the mode second.
_OPENED = {"builtins.open", "io.open", "wave.open", "zipfile.ZipFile", "h5py.File", "gzip.open", "codecs.open"}
# Methods that write a file, whatever their object is: the position of the path; None means the object is the path.
_METHODS: dict[str, int | None] = {
    **dict.fromkeys(["savefig", "save", "save_pretrained", "export_chrome_trace"], 0),
    **dict.fromkeys(["to_csv", "to_json", "to_parquet", "to_excel"], 0),
    **dict.fromkeys(["write_videofile", "write_audiofile", "export", "write_image", "write_html"], 0),
    "write_text": None,
    "write_bytes": None,
}


@dataclass(frozen=True)
class Output:
    """One written file: how the script names it (a variable, a literal or an expression), and where it will go."""

    line: int
    kind: str
    text: str
    writer: str
    goes_to: str

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


def find_outputs(flow: Flow, command_line: CommandLine) -> list[Output]:
    """The outputs in the order of their lines."""
    found = []
    for node in flow.nodes:
        if not isinstance(node, ast.Call):
            continue
        path = written_path(node, flow)
        if path is not None:
            kind = "expression"
            if isinstance(path, ast.Constant):
                kind = "literal"
            elif isinstance(path, ast.Name | ast.Attribute):
                kind = "variable"
            target = _destination(path, flow, command_line)
            found.append(Output(node.lineno, kind, ast.unparse(path), ast.unparse(node.func), target))
    return sorted(found, key=lambda o: (o.line, o.text))


def output_variables(outputs: list[Output]) -> list[str]:
    return list(dict.fromkeys(o.text for o in outputs if o.kind == "variable"))


def written_path(call: ast.Call, flow: Flow) -> ast.expr | None:
    """The argument of a call that names the file it writes."""
    names = {v.dotted for v in flow.values(call.func) if isinstance(v, Ref)}
    for name in sorted(names & set(_FUNCTIONS)):
        position, keyword = _FUNCTIONS[name]
        return argument(call, position, keyword)
    if names & _OPENED:
        mode = argument(call, 1, "mode")
        writes = isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+")
        return argument(call, 0, "file") if writes else None
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _METHODS:
        return None
    known = {n.rpartition(".")[2] for n in names} & set(_METHODS)
    if names and not known:
        return None
    position_or_object = _METHODS[call.func.attr]
    if position_or_object is None:
        return call.func.value
    path = argument(call, position_or_object, "path")
    # `model.save(optimizer)` and the like write no file that this names.
    named = isinstance(path, ast.Constant) and isinstance(path.value, str)
    return path if named or isinstance(path, ast.Name | ast.Attribute | ast.JoinedStr | ast.BinOp | ast.Call) else None


def argument(call: ast.Call, position: int, keyword: str) -> ast.expr | None:
    """A call's argument, by keyword or position."""
    for given in call.keywords:
        if given.arg == keyword:
            return given.value
    if len(call.args) > position and not any(isinstance(a, ast.Starred) for a in call.args[: position + 1]):
        return call.args[position]
    return None


def _destination(path: ast.expr, flow: Flow, command_line: CommandLine) -> str:
    """The path as far as the script tells: a literal, an option's default, or the expression it is computed by."""
    if isinstance(path, ast.Constant):
        return str(path.value)
    if isinstance(path, ast.Attribute):
        for option in command_line.options:
            known = option.default is not None and not isinstance(option.default, Unknown)
            if option.name == path.attr and known:
                return str(option.default)
    if isinstance(path, ast.Name):
        home = flow.scope(path).home(path.id)
        for node in ast.walk(home.node) if home else ():
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == path.id for t in node.targets):
                return ast.unparse(node.value)
    return ast.unparse(path)
