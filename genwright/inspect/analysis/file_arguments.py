"""Which arguments of a call name a file that is read, and of which medium."""

import ast
import sys
from collections.abc import Iterator

from genwright.inspect.analysis.abstract_values import Instance, Made, Member, Ref, Values
from genwright.inspect.analysis.bind import is_file_name
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.definitions import define
from genwright.inspect.analysis.outputs import argument
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.sites import Location
from genwright.inspect.analysis.syntax import arguments

# fmt: off
_IMAGES = (
    "PIL.Image.open", "cv2.imread", "imageio.imread", "imageio.v2.imread", "imageio.v3.imread", "skimage.io.imread",
    "matplotlib.pyplot.imread", "matplotlib.image.imread", "torchvision.io.read_image", "diffusers.utils.load_image",
    "face_recognition.load_image_file",
)
_AUDIO = (
    "torchaudio.load", "torchaudio.info", "librosa.load", "librosa.core.load", "soundfile.read", "soundfile.SoundFile",
    "scipy.io.wavfile.read", "wave.open", "whisper.load_audio", "pydub.AudioSegment.from_file",
    "pydub.AudioSegment.from_wav", "pydub.AudioSegment.from_mp3",
)
_VIDEOS = (
    "cv2.VideoCapture", "torchvision.io.read_video", "decord.VideoReader", "imageio.get_reader",
    "moviepy.VideoFileClip", "moviepy.editor.VideoFileClip", "diffusers.utils.load_video",
)
_PDFS = (
    "fitz.open", "pymupdf.open", "pypdf.PdfReader", "PyPDF2.PdfReader", "pdfplumber.open",
    "pdf2image.convert_from_path",
)
# fmt: on
# Functions that read the file or folder that their first argument names, with the medium where that is always the same.
READERS = {
    **dict.fromkeys(_IMAGES, "image"),
    **dict.fromkeys(_AUDIO, "audio"),
    **dict.fromkeys(_VIDEOS, "video"),
    **dict.fromkeys(_PDFS, "pdf"),
    **dict.fromkeys(("builtins.open", "io.open", "codecs.open", "av.open", "shutil.copy", "shutil.copyfile"), ""),
    **dict.fromkeys(("os.listdir", "os.scandir", "os.walk", "os.startfile"), ""),
}
_READER_KEYWORDS = ("file", "filename", "fp", "uri", "path", "fname", "image", "f", "src", "top", "filepath")
# Methods that read the file or folder that their object names.
_READING_METHODS = {"open", "read_bytes", "read_text", "iterdir"}
# Libraries that take texts to show or to parse; a path handed to them is not opened.
_TALKING = {"click", "typer", "rich", "tqdm", "loguru", "absl", "fire", "pytest", "jsonargparse", "tyro"}
_SHOWN = {"help", "description", "label", "title", "placeholder", "info", "name", "text", "prompt", "message", "msg"}


def read_files(location: Location, repository: Repository) -> Iterator[tuple[Values, str, str, ast.Call]]:
    """Arguments that name files: their values, why they do (opened, signature or extension), the medium, the call.

    An argument of a callee that cannot be seen is told with the reason "extension": it names a file if it has the
    extension of one.
    """
    flow = location.flow
    sites = {s.call: s for s in location.sites}
    for call in flow.nodes:
        if not isinstance(call, ast.Call):
            continue
        values = flow.values(call.func)
        yield from ((found, "opened", medium, call) for found, medium in _opened(call, values, flow))
        site = sites.get(call)
        if site is not None and site.signature is not None:
            bound = zip(arguments(call), site.binding.arguments, strict=True)
            files = {p.name for p in site.signature.parameters if p.is_file} | set(site.interface.files)
            yield from ((flow.values(a), "signature", "", call) for a, to in bound if to.parameter in files)
        else:
            yield from ((found, "signature", "", call) for found in _declared(call, values, flow, repository))
        if site is not None or _is_foreign(values, repository):
            given = [*call.args, *(k.value for k in call.keywords if k.arg not in _SHOWN)]
            yield from ((flow.values(a), "extension", "", call) for a in given)


def _opened(call: ast.Call, values: Values, flow: Flow) -> Iterator[tuple[Values, str]]:
    for name in sorted({v.dotted for v in values if isinstance(v, Ref)} & set(READERS)):
        mode = argument(call, 1, "mode")
        writes = isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax")
        path = next((p for k in _READER_KEYWORDS if (p := argument(call, 0, k)) is not None), None)
        if path is not None and not (name.endswith(".open") and writes):
            yield flow.values(path), READERS[name]
    if isinstance(call.func, ast.Attribute) and call.func.attr in _READING_METHODS:
        mode = argument(call, 0, "mode")
        if not isinstance(mode, ast.Constant) or not set(str(mode.value)) & set("wax"):
            yield flow.values(call.func.value), ""


def _declared(call: ast.Call, values: Values, flow: Flow, repository: Repository) -> Iterator[Values]:
    """Arguments of parameters that are files by name or annotation, in the callee's signature or as a keyword."""
    known = False
    for reference in sorted(v.dotted for v in values if isinstance(v, Ref)):
        module, _, name = reference.rpartition(".")
        file = repository.find(module) if module else None
        tree = repository.parse(file) if file else None
        for definition in define(tree, module) if tree else ():
            if definition.name == name and definition.signature is not None:
                known = True
                for parameter, value in zip(definition.signature.positional, call.args, strict=False):
                    if isinstance(value, ast.Starred):
                        break
                    if parameter.is_file:
                        yield flow.values(value)
                files = {p.name for p in definition.signature.parameters if p.is_file}
                yield from (flow.values(k.value) for k in call.keywords if k.arg in files)
    if not known and _is_foreign(values, repository):
        from_names = [k for k in call.keywords if k.arg and is_file_name(k.arg)]
        yield from (flow.values(k.value) for k in from_names)


def _is_foreign(values: Values, repository: Repository) -> bool:
    """Whether a callee comes from a library, or is a method of an object that a library made."""
    names = [v.dotted for v in values if isinstance(v, Ref)]
    for value in values:
        if isinstance(value, Member) and isinstance(value.instance, Made):
            names.append(value.instance.by)
        elif isinstance(value, Member | Instance):
            of = value.instance.of if isinstance(value, Member) and isinstance(value.instance, Instance) else None
            names += [of.dotted] if isinstance(of, Ref) else []
    quiet = [n for n in names if "." in n and n.partition(".")[0] not in _TALKING | sys.stdlib_module_names]
    return any(n.partition(".")[0] != "builtins" and not repository.find(n.rpartition(".")[0]) for n in quiet)
