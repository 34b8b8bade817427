"""Blocks and differences of lines: correct for any two texts, and the same as difflib's for ordinary ones."""

import difflib
import random

from call_count import calls

from genwright.inspect.rewrite.line_diff import matching_blocks, unified_diff


def mutated(seed: int) -> tuple[list[str], list[str]]:
    chance = random.Random(seed)
    before = [f"{chance.randrange(12)}\n" for _ in range(chance.randrange(40))]
    after = list(before)
    for _ in range(chance.randrange(6)):
        at = chance.randrange(len(after) + 1)
        after[at : at + chance.randrange(3)] = [f"new {chance.randrange(3)}\n" for _ in range(chance.randrange(3))]
    return before, after


def patched(before: list[str], diff: list[str]) -> list[str]:
    """What the difference makes of a text, by its own line numbers."""
    result, at = [], 0
    for line in diff[2:]:
        if line.startswith("@@"):
            number, _, length = line.split()[1][1:].partition(",")
            start = int(number) - (length != "0")
            result, at = [*result, *before[at:start]], start
        elif line[0] == "+":
            result.append(line[1:])
        else:
            assert before[at] == line[1:]
            result += [line[1:]] if line[0] == " " else []
            at += 1
    return [*result, *before[at:]]


def test_blocks_are_equal_lines_in_order_and_the_difference_applies() -> None:
    for seed in range(300):
        before, after = mutated(seed)
        i = j = 0
        for first, second, size in matching_blocks(before, after):
            assert size and first >= i and second >= j and before[first : first + size] == after[second : second + size]
            i, j = first + size, second + size
        assert patched(before, unified_diff(before, after, "a", "b")) == after, seed


def test_few_changes_give_what_difflib_gives() -> None:
    before = [f"line {i}\n" for i in range(300)]
    after = ["head\n", *before[:40], "changed\n", *before[41:200], *before[210:], "tail\n"]
    assert unified_diff(before, after, "a", "b") == [
        line.removesuffix("\n") if line[:2] in ("--", "++", "@@") else line
        for line in difflib.unified_diff(before, after, "a", "b")
    ]


def test_repeated_lines_take_linear_time() -> None:
    def cost(count: int) -> int:
        before = ["print(f(1))\n"] * count
        return calls(matching_blocks, before, ["head\n", *before[: count // 2], "new\n", *before])

    assert cost(4000) < 3 * cost(2000)
