import pytest

from genwright.images.sampling.ternary_search import ternary_search


@pytest.mark.parametrize("best", range(1, 39))
def test_finds_the_valley(best):
    asked = []

    def score(point):
        assert 0 < point < 39
        asked.append(point)
        return abs(point - best) ** 1.5

    assert ternary_search(score, 0, 39) == best
    assert len(asked) == len(set(asked)) <= 16


def test_a_single_candidate_is_the_answer():
    assert ternary_search(lambda point: 0.0, 4, 6) == 5
