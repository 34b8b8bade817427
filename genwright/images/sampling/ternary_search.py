"""The original's ternary search for the next time step of multistep sampling."""

from collections.abc import Callable
from functools import cache


def ternary_search(score: Callable[[int], float], low: int, high: int) -> int:
    """The whole number strictly between low and high with the lowest score, if the score has one minimum.

    The interval shrinks as in the original. At the end all its numbers are compared; the original returned one of an
    earlier pair.
    """
    score = cache(score)
    left, right = low, high
    while right - left >= 3:
        third = (right - left) / 3
        middle_left, middle_right = int(left + third), int(right - third)
        if score(middle_left) < score(middle_right):
            right = middle_right
        else:
            left = middle_left
    return min(range(max(left, low + 1), min(right, high - 1) + 1), key=score)
