"""The lines that two texts have in common, and their difference, in time that grows with their length.

difflib alone takes quadratic time where lines repeat.
"""

import bisect
import difflib
from collections import defaultdict
from collections.abc import Iterator

_ANCHOR = 3  # lines in a row that are looked up
_SMALL = 200  # lines of a gap between anchors that difflib compares
_CONTEXT = 3

Block = tuple[int, int, int]


def matching_blocks(before: list[str], after: list[str]) -> list[Block]:
    """Runs of equal lines, in order: where each starts in both texts, and its length."""
    places: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for at in range(len(after)):
        places[tuple(after[at : at + _ANCHOR])].append(at)
    blocks: list[Block] = []
    done = (0, 0)
    i = j = 0
    while i < len(before) and j < len(after):
        length = 0
        while i + length < len(before) and j + length < len(after) and before[i + length] == after[j + length]:
            length += 1
        if length:
            blocks += [*_gap(before, after, done, (i, j)), (i, j, length)]
            i, j = done = i + length, j + length
            continue
        while i < len(before):
            found = places.get(tuple(before[i : i + _ANCHOR]), [])
            at = bisect.bisect_left(found, j)
            if at < len(found):
                j = found[at]
                break
            i += 1
    return [*blocks, *_gap(before, after, done, (len(before), len(after)))]


def _gap(before: list[str], after: list[str], start: tuple[int, int], end: tuple[int, int]) -> Iterator[Block]:
    old, new = before[start[0] : end[0]], after[start[1] : end[1]]
    if old and new and max(len(old), len(new)) <= _SMALL:
        for block in difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
            if block.size:
                yield start[0] + block.a, start[1] + block.b, block.size


class _Matcher(difflib.SequenceMatcher[str]):
    """difflib's grouping of changes, by the blocks above."""

    def __init__(self, before: list[str], after: list[str]) -> None:
        super().__init__(autojunk=False)
        self.texts = before, after

    def get_matching_blocks(self) -> list[difflib.Match]:
        before, after = self.texts
        return [difflib.Match(*block) for block in (*matching_blocks(before, after), (len(before), len(after), 0))]


def unified_diff(before: list[str], after: list[str], old_name: str, new_name: str) -> list[str]:
    """The difference as `diff -u` writes it, without line ends."""
    matcher = _Matcher(before, after)
    lines = [f"--- {old_name}", f"+++ {new_name}"]
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        lines.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [f" {line}" for line in before[i1:i2]]
                continue
            lines += [f"-{line}" for line in before[i1:i2]] + [f"+{line}" for line in after[j1:j2]]
    return lines if len(lines) > 2 else []


def _range(start: int, stop: int) -> str:
    length = stop - start
    return f"{start + (length > 0)}" + (f",{length}" if length != 1 else "")
