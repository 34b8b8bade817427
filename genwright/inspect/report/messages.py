# ruff: noqa: RUF001
"""The sentences of an explanation, in English and in the language of the Inspection traces."""

import re

STAGES = {
    "en": [
        "Code logic analysis",
        "Unattended execution analysis",
        "Unattended execution result",
        "Interface location and classification",
        "Interface replacement analysis",
        "Interface replacement result",
        "Output file analysis",
        "External resource analysis",
        "External resources by kind",
        "Time taken",
    ],
    "zh": [
        "代码逻辑分析",
        "代码执行补全分析",
        "代码执行补全结果",
        "代码关键函数/方法定位与分类分析",
        "代码接口调用替换分析",
        "代码接口调用替换结果",
        "代码优化分析",
        "外部资源路径分析",
        "外部资源路径格式化分析",
        "模拟执行代码生成耗时",
    ],
}

_PARSERS = ("click", "typer", "fire", "absl", "tyro", "jsonargparse", "docopt", "hydra")

_EN = {
    **{
        name: f"Line {{line}}: {name} reads the command line; it stays and gets its argv from the scenario."
        for name in _PARSERS
    },
    "imports": "It imports {standard} (standard library), {repository} (its repository) and {others} (others).",
    "none": "nothing",
    "defines": "It defines:",
    "entry_guard": "It starts at `if __name__ == '__main__'` (line {line}).",
    "entry_top": "It runs from top to bottom; no `__main__` guard.",
    "entry_added": "It runs nothing by itself; `{entry}` is added at the end.",
    "entry_missing": "It runs nothing by itself, and several things could be its start.",
    "flow": "From there it calls, in this order:",
    "no_blockers": "Nothing would block an unattended run.",
    "argparse": "Line {line}: argparse reads the command line; the parser stays and gets its argv from the scenario.",
    "sys.argv": "Line {line}: `sys.argv` is read directly; it is set from the scenario.",
    "input": "Line {line}: `{text}` waits for a person; the scenario answers, then the input ends.",
    "window": "Line {line}: `{text}` opens a window; what it would show is recorded.",
    "server": "Line {line}: `{text}` would wait for visitors; it is not started, and its handlers that cross the model "
    "are called.",
    "debugger": "Line {line}: `{text}` stops in a debugger; it is switched off.",
    "ui": "Line {line}: `{text}` is a page; it is not opened, and what crosses the model is called as a visitor would.",
    "entry": "The script starts nothing by itself.",
    "options": "The command line's defaults:",
    "required": "required",
    "missing": "These values are required and not given:",
    "chosen": "Nobody gave these values, so they were chosen:",
    "no_sites": "No interface of the manifest is called.",
    "function": "line {line}: `{name}`, a function",
    "method": "line {line}: `{name}`, a method of class `{owner}`, called on `{object}`",
    "construction": "line {line}: `{name}`, an object of the class is made{factory}",
    "by_factory": " by `{factory}`",
    "arguments": "arguments: {arguments}",
    "problem": "the call does not fit: it {problem}",
    "unresolved": "Not resolved:",
    "replace": "Line {line}:",
    "registered": "`{name}` is defined by the script and registered after its definition.",
    "outputs": "Variables that name output files:",
    "output": "line {line}: `{text}` ({kind}) is written by `{writer}` and goes to `{goes_to}`",
    "variable": "variable",
    "literal": "literal",
    "expression": "expression",
    "resource": "line {line}: `{value}` in `{variable}` is {kind} {shape}, which `{opened_by}` opens "
    "({reason}); `{sample}` stands in",
    "no_resources": "No placeholder path of an image, audio, video or PDF is opened.",
    "opened": "the call reads a file",
    "signature": "its parameter takes a file",
    "extension": "by the extension",
    "file": "file",
    "folder": "folder",
    "image": "an image",
    "audio": "an audio",
    "video": "a video",
    "pdf": "a PDF",
    "time": "Total time: {seconds:.2f} seconds",
}

_ZH = {
    **{name: f"第 {{line}} 行：{name} 读取命令行；保留，参数由场景给出。" for name in _PARSERS},
    "imports": "从标准库导入 {standard}；从本仓库导入 {repository}；从其他库导入 {others}。",
    "none": "无",
    "defines": "定义了：",
    "entry_guard": "入口是 `if __name__ == '__main__'`（第 {line} 行）。",
    "entry_top": "从上到下直接执行，没有 `__main__` 判断。",
    "entry_added": "脚本自身不执行任何内容；在末尾添加 `{entry}`。",
    "entry_missing": "脚本自身不执行任何内容，且可能的入口不止一个。",
    "flow": "随后依次调用：",
    "no_blockers": "没有阻碍无人值守运行的内容。",
    "argparse": "第 {line} 行：argparse 读取命令行；解析器保留，参数由场景给出。",
    "sys.argv": "第 {line} 行：直接读取 `sys.argv`；由场景设定。",
    "input": "第 {line} 行：`{text}` 等待人工输入；由场景回答，答完后输入结束。",
    "window": "第 {line} 行：`{text}` 会打开窗口；将显示的内容改为记录。",
    "server": "第 {line} 行：`{text}` 会等待访问者；不启动，而是调用其中经过模型的处理函数。",
    "debugger": "第 {line} 行：`{text}` 会进入调试器；已关闭。",
    "ui": "第 {line} 行：`{text}` 是用户界面；不打开，而是像访问者那样调用经过模型的部分。",
    "entry": "脚本自身不启动任何内容。",
    "options": "命令行默认值：",
    "required": "必填",
    "missing": "以下必填值尚未给出：",
    "chosen": "以下值无人给出，因此自动选定：",
    "no_sites": "没有调用清单中的任何接口。",
    "function": "第 {line} 行：`{name}`，顶级函数",
    "method": "第 {line} 行：`{name}`，类 `{owner}` 的方法，由 `{object}` 调用",
    "construction": "第 {line} 行：`{name}`，创建该类的对象{factory}",
    "by_factory": "（通过 `{factory}`）",
    "arguments": "参数：{arguments}",
    "problem": "调用与签名不符：{problem}",
    "unresolved": "未能解析：",
    "replace": "第 {line} 行：",
    "registered": "`{name}` 由脚本自身定义，在定义之后注册。",
    "outputs": "输出文件的变量名：",
    "output": "第 {line} 行：`{text}`（{kind}）由 `{writer}` 写入，位置为 `{goes_to}`",
    "variable": "变量",
    "literal": "字面量",
    "expression": "表达式",
    "resource": "第 {line} 行：`{variable}` 中的 `{value}` 是{kind}{shape}，由 `{opened_by}` 打开"
    "（{reason}）；以 `{sample}` 代替",
    "no_resources": "没有被打开的图像、音频、视频或 PDF 占位路径。",
    "opened": "该调用读取文件",
    "signature": "其参数是文件",
    "extension": "根据扩展名",
    "file": "文件",
    "folder": "文件夹",
    "image": "图像",
    "audio": "音频",
    "video": "视频",
    "pdf": "PDF",
    "time": "总耗时：{seconds:.2f} 秒",
}

SENTENCES = {"en": _EN, "zh": _ZH}

# What the analysis says of a site, in the words of bind, locate and unattended.
_TRANSLATIONS_ZH = [
    (r"may be (.+) or (.+)", r"可能是 \1 或 \2"),
    (r"may also be (.+)", r"也可能是 \1"),
    (r"what (.+) gives", r"\1 的返回值"),
    (r"(.+) is called on an expression without a name", r"\1 在无名表达式上被调用"),
    (r"(.+) is called inside an f-string; give it a line of its own", r"\1 在 f-string 内被调用；请单独成行"),
    (r"nothing in the script defines (.+); it is taken from (.+)", r"脚本未定义 \1；取自 \2"),
    (r"a command: its arguments come from the command line", r"命令：参数来自命令行"),
    (r"called on the class itself, not on an object", r"在类本身而非对象上调用"),
    (r"a method of (.+): nothing tells what it is", r"\1 的方法：无法得知其类型"),
    (r"a method of (.+): it is what (.+) gives, whose class is not known", r"\1 的方法：来自 \2，类型未知"),
    (r"nothing tells what (.+) is", r"无法得知 \1 是什么"),
    (r"(.+) is handed on as a value; calls made through it are not recorded", r"\1 作为值传递；经由它的调用不被记录"),
    (r"takes (\d+) positional arguments, the call has (\d+)", r"接受 \1 个位置参数，调用给出 \2 个"),
    (r"gets (.+) twice", r"\1 被给出两次"),
    (r"has no parameter (.+)", r"没有参数 \1"),
    (r"lacks (.+)", r"缺少 \1"),
    (r"ui\.handler \(some of (.+)\): .+", r"ui.handler（\1 中的若干个）：访问者使脚本调用的函数"),
    (r"entry \(a Python expression\): .+", r"entry（Python 表达式）：脚本只有定义；请指明要运行的内容"),
    (r"the first of its choices", r"第一个可选值"),
    (r"the first of the test's parameters", r"测试的第一组参数"),
    (r"what crosses the model", r"经过模型的函数"),
    (r"the command that calls the model", r"调用模型的命令"),
    (r"it calls the model", r"它调用模型"),
    (r"from an example of the README", r"取自 README 的示例"),
    (r"shipped with the repository", r"仓库自带的文件"),
    (r"the repository's folder", r"仓库所在文件夹"),
    (r"a new path, by its name", r"由名称推断：新的输出路径"),
    (r"a sample \((.+)\)", r"样例文件（\1）"),
    (r"(?:a number|off), by its (?:type|name)", r"由类型或名称推断"),
    (r"(?:a sentence, )?by its name", r"由名称推断"),
    (r"a (?:text|sentence): nothing tells .+", r"没有依据，仅作占位；请编辑"),
    (r"(.+) \(one of (.+)\): which command to run", r"\1（\2 之一）：要运行的命令"),
    # Why something is taken for an interface, in the words of behaviour and border.
    (r"it loads weights", r"它加载权重"),
    (r"it calls a network or a session", r"它调用网络或推理会话"),
    (r"it asks a model behind a network API", r"它通过网络 API 请求模型"),
    (r"it runs without gradients", r"它在无梯度模式下运行"),
    (r"it is a network's forward pass", r"它是网络的前向计算"),
    (r"it moves tensors to a device", r"它把张量移到设备上"),
    (r"it computes with tensors", r"它用张量计算"),
    (r"it reads the command line", r"它读取命令行"),
    (r"another module defines it", r"由另一个模块定义"),
    (r"it is given inputs", r"它得到输入"),
    (r"its result is used", r"它的结果被使用"),
]
# The same, of what a function calls and of its class.
_TRANSLATIONS_ZH += [
    (f"through what it calls {p}", f"通过其调用：{t}") for p, t in _TRANSLATIONS_ZH if p.startswith("it ")
] + [(f"of its class, {p}", f"其所属的类：{t}") for p, t in _TRANSLATIONS_ZH if p.startswith("it ")]


def translate(sentence: str, language: str) -> str:
    """A sentence of the analysis in another language; names, types and help texts stay as they are."""
    for pattern, template in _TRANSLATIONS_ZH if language == "zh" else ():
        match = re.fullmatch(pattern, sentence)
        if match:
            return match.expand(template)
    return sentence
