"""Lay out the work flow: what is read and written on the left, the script's steps in the middle, the model right."""

import unicodedata
from dataclasses import dataclass

from genwright.inspect.report.steps import Step

_WIDTHS = (290, 230, 290)  # of the columns
_GAP, _HEIGHT, _SPACE, _TOP = 70, 26, 10, 40
_CHARACTER = 7.2  # the width of a character of the picture's font
_MOST_STEPS, _MOST_ITEMS = 40, 12


@dataclass(frozen=True)
class Box:
    """A box with a clipped text; `full` is the whole of it."""

    kind: str
    x: float
    y: float
    width: float
    text: str
    full: str
    height: float = _HEIGHT


@dataclass(frozen=True)
class Arrow:
    kind: str
    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Picture:
    """The laid out work flow; `left_out` steps are not drawn."""

    width: float
    height: float
    columns: tuple[float, ...]  # the middle of each
    boxes: list[Box]
    arrows: list[Arrow]
    left_out: int


def draw(steps: list[Step], top: str, kinds: dict[str, str]) -> Picture:
    """Each step a row, as high as what it reads, writes and calls; `top` names the top level, `kinds` the items."""
    shown = [s for s in steps if s.node is not steps[0].node or s.crossings or s.reads or s.writes or len(steps) == 1]
    boxes: list[Box] = []
    arrows: list[Arrow] = []
    starts = (0.0, _WIDTHS[0] + _GAP, _WIDTHS[0] + _WIDTHS[1] + 2 * _GAP)
    left, right = starts[1] - _GAP, starts[2]
    y, before = float(_TOP), None
    for step in shown[:_MOST_STEPS]:
        items = [(i, "read") for i in step.reads] + [(i, "write") for i in step.writes]
        items, crossings = items[:_MOST_ITEMS], step.crossings[:_MOST_ITEMS]
        height = max(len(items), len(crossings), 1) * (_HEIGHT + _SPACE) - _SPACE
        label = f"{step.name}() : {step.line}" if step.name else top
        box = _box("step", starts[1], y, _WIDTHS[1], label, height)
        boxes.append(box)
        if before is not None:
            x = starts[1] + _WIDTHS[1] / 2
            arrows.append(Arrow("next", x, before.y + before.height, x, y))
        for row, (item, kind) in enumerate(items):
            at = y + row * (_HEIGHT + _SPACE)
            boxes.append(_box(kind, 0, at, _WIDTHS[0], f"{kinds[item.kind]} {item.text} : {item.line}"))
            middle = at + _HEIGHT / 2
            ends = (left, starts[1]) if kind == "read" else (starts[1], left)
            arrows.append(Arrow(kind, ends[0], middle, ends[1], middle))
        for row, site in enumerate(crossings):
            at = y + row * (_HEIGHT + _SPACE)
            boxes.append(_box("model", right, at, _WIDTHS[2], f"{site.interface.name} : {site.call.lineno}"))
            for shift, ends in ((-5, (right - _GAP, right)), (5, (right, right - _GAP))):
                middle = at + _HEIGHT / 2 + shift
                arrows.append(Arrow("model", ends[0], middle, ends[1], middle))
        y += height + 2 * _SPACE + 8
        before = box
    columns = tuple(start + width / 2 for start, width in zip(starts, _WIDTHS, strict=True))
    return Picture(starts[2] + _WIDTHS[2], y, columns, boxes, arrows, max(len(shown) - _MOST_STEPS, 0))


def _box(kind: str, x: float, y: float, width: float, text: str, height: float = _HEIGHT) -> Box:
    return Box(kind, x, y, width, clip(text, int((width - 16) / _CHARACTER)), text, height)


def clip(text: str, most: int) -> str:
    """A text on one line, at most so many characters wide; wide ones of East Asia count twice."""
    text = " ".join(text.split())
    wide = [2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text]
    if sum(wide) <= most:
        return text
    used, kept = 1, ""
    for character, width in zip(text, wide, strict=True):
        used += width
        if used > most:
            break
        kept += character
    return f"{kept}…"
