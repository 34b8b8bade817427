"""Pages and the prefix tree: whatever sequences do, each reads its own rows, and no page is lost or shared wrongly."""

import random
from collections.abc import Sequence

import pytest
import torch
from text.cache.invariants import available, check_pool

from genwright.kernels import PAGE
from genwright.text.cache.layout import NULL_PAGE, Cache, CacheSpec, LayerSpec
from genwright.text.cache.pages import NO_PAGE, PagePool, Prefix, SequencePages

STEP = 100  # tokens of a step
GEMMA = [70, 70, 70, 70, 70, None] * 2  # five local layers to a global one
MODELS = {"plain": [None] * 2, "window": [150] * 2, "short window": [1, 1], "gemma": GEMMA, "three": [30, 200, None]}


def new_pool(windows: Sequence[int | None], pages: int) -> PagePool:
    spec = CacheSpec([LayerSpec({"row": (1,)}, window) for window in windows], torch.float64)
    return PagePool(Cache(spec, pages + spec.null_pages, torch.device("cpu")), STEP)


def fitting(windows: Sequence[int | None], length: int) -> int:
    """Pages that one sequence needs at the most."""
    return new_pool(windows, 1).cache.spec.pages_of(length, STEP)


class Sequences:
    """Simulates a model's sequences: a token's row is a number that depends on all tokens up to it."""

    def __init__(self, pool: PagePool):
        self.pool = pool
        self.live: list[tuple[SequencePages, list[int]]] = []

    def start(self, tokens: list[int]) -> SequencePages | None:
        sequence = self.pool.start(tokens)
        if sequence is not None:
            self.live.append((sequence, list(tokens)))
        return sequence

    def advance(self, sequence: SequencePages, count: int) -> int:
        """Compute up to `count` of a sequence's next tokens, as many as there is room for."""
        tokens = next(tokens for each, tokens in self.live if each is sequence)
        count = min(count, len(tokens) - sequence.length)
        self.pool.extend(sequence, sequence.length + count)
        count = min(count, sequence.capacity() - sequence.length)
        self.write(sequence, torch.tensor(rows(tokens)[sequence.length : sequence.length + count]))
        sequence.length += count
        self.pool.share(sequence, tokens)
        return count

    def write(self, sequence: SequencePages, values: torch.Tensor) -> None:
        for layer in self.pool.cache.layers:
            table = sequence.tables()[layer.group]
            places = range(sequence.length, sequence.length + len(values))
            slots = [table[place // PAGE] * PAGE + place % PAGE for place in places]
            assert all(slot >= PAGE * self.pool.cache.spec.null_pages for slot in slots), "a row in the null page"
            layer.write("row", torch.tensor(slots, dtype=torch.int64), values.double()[:, None])

    def end(self, sequence: SequencePages, how: str) -> None:
        tokens = next(tokens for each, tokens in self.live if each is sequence)
        self.live = [(each, tokens) for each, tokens in self.live if each is not sequence]
        if how == "finish":
            self.pool.finish(sequence, tokens)
        else:
            getattr(self.pool, how)(sequence)

    def check(self) -> None:
        """The pool's invariants; and every row that the next query can see is the sequence's own."""
        check_pool(self.pool, [sequence for sequence, _ in self.live])
        for sequence, tokens in self.live:
            expected = torch.tensor(rows(tokens[: sequence.length]), dtype=torch.float64)
            for layer in self.pool.cache.layers:
                window = self.pool.windows[layer.group]
                first = 0 if window is None else max(0, sequence.length - window + 1)
                table = sequence.tables()[layer.group]
                seen = layer.read("row", torch.tensor(table, dtype=torch.int64), torch.float64).flatten()
                assert torch.equal(seen[first : sequence.length], expected[first:])
        if self.pool.cache.spec.null_pages:
            assert all((values[:, NULL_PAGE] == 0).all() for values in self.pool.cache.rows.values())


def rows(tokens: Sequence[int]) -> list[int]:
    """A number for each token, by all tokens up to it."""
    found, value = [], 1
    for token in tokens:
        value = (value * 31 + token + 7) % (1 << 40)
        found.append(value)
    return found


def random_tokens(rng: random.Random, known: list[list[int]]) -> list[int]:
    """Random tokens that often start with a prefix of earlier ones."""
    prefix = rng.choice(known)
    return [*prefix[: rng.choice([0, rng.randint(0, len(prefix)), len(prefix)])], *rng.choices(range(3), k=99)][:400]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", MODELS)
def test_random_operations_keep_the_invariants(model: str, seed: int) -> None:
    windows, rng = MODELS[model], random.Random(seed)
    sequences = Sequences(new_pool(windows, int(1.5 * fitting(windows, 400))))
    known = [rng.choices(range(3), k=300)]
    for _ in range(150):
        action = rng.random()
        if action < 0.35 or not sequences.live:
            known.append(random_tokens(rng, known))
            sequences.start(known[-1])
        elif action < 0.75:
            sequences.advance(rng.choice(sequences.live)[0], rng.choice([1, 20, STEP]))
        elif action < 0.85:  # a draft's tokens, written behind the length and not accepted
            sequence, _ = rng.choice(sequences.live)
            sequences.pool.extend(sequence, sequence.length + 5)
            sequences.write(sequence, torch.zeros(min(5, sequence.capacity() - sequence.length)))
        else:
            sequences.end(rng.choice(sequences.live)[0], rng.choice(["finish", "finish", "release", "discard"]))
        sequences.check()
    for sequence, _ in list(sequences.live):
        sequences.end(sequence, "finish")
    assert available(sequences.pool) == sequences.pool.cache.pages - sequences.pool.cache.spec.null_pages
    sequences.check()


@pytest.mark.parametrize("model", MODELS)
def test_one_sequence_always_fits_into_its_own_pages(model: str) -> None:
    """Also when earlier sequences left pages in the tree, and when it shares a prefix with one of them."""
    windows, rng = MODELS[model], random.Random(5)
    sequences = Sequences(new_pool(windows, fitting(windows, 500)))
    text = rng.choices(range(3), k=500)
    for length in (200, 500, 256, 500, 500):
        sequence = sequences.start([*text[: rng.randint(0, length)], *rng.choices(range(3), k=500)][:length])
        assert sequence is not None
        while sequence.length < length:
            assert sequences.advance(sequence, STEP)
            sequences.check()
        sequences.end(sequence, "finish")


def test_a_window_holds_only_its_own_pages() -> None:
    sequences = Sequences(new_pool([100] * 3, fitting([100], 10**6)))
    assert sequences.pool.cache.pages < 8
    sequence = sequences.start([5] * 3000)
    assert sequence is not None
    while sequence.length < 3000:
        assert sequences.advance(sequence, STEP)
    sequences.check()


def test_local_layers_free_their_pages_and_global_ones_keep_them() -> None:
    """Gemma's five local layers to a global one: beyond the window, a sequence grows by a sixth of its pages."""
    sequences = Sequences(new_pool(GEMMA, 400))
    assert [len(group) for group in sequences.pool.cache.spec.groups] == [2] * 6
    sequence = sequences.start(list(range(1000)))
    assert sequence is not None
    while sequence.length < 1000:
        sequences.advance(sequence, STEP)
    held = [
        sum(node.readers[group] > 0 for node in sequence.shared) + len(sequence.own)
        for group in range(len(sequences.pool.windows))
    ]
    assert sorted(held) == [2, 2, 2, 2, 2, 16]


def take_away(pool: PagePool, node: Prefix, group: int) -> None:
    """Evict a page of a group with a window, as when another sequence needs one."""
    pool.evictable.move_to_end((node, group), last=False)
    free, pool.free = pool.free, []
    taken = pool._allocate()
    pool.free = [*free, taken]


def test_a_prefix_is_reused_only_where_its_windows_are_whole() -> None:
    pool = new_pool([100, None], 40)
    sequences, text = Sequences(pool), list(range(10 * PAGE))
    first = sequences.start([*text, 0])
    assert first is not None
    while first.length < len(text):
        sequences.advance(first, STEP)
    nodes = list(first.shared)
    sequences.end(first, "release")

    def reused(length: int) -> int:
        return len(pool._match_prefix([*text, 0][:length]))

    assert [reused(length) for length in (300, 640, 641)] == [4, 9, 10]
    take_away(pool, nodes[7], group=0)  # visible to queries after nine pages, but not after ten
    assert [reused(length) for length in (300, 640, 641)] == [4, 7, 10]
    sequences.check()
    again = sequences.start(text)
    assert again is not None and again.length == 7 * PAGE
    while again.length < len(text):
        sequences.advance(again, STEP)
        sequences.check()
    assert NO_PAGE not in nodes[7].pages, "computed again, the page is in the tree again"
    assert reused(640) == 9


def test_a_last_page_whose_window_was_taken_is_completed_when_it_is_computed_again() -> None:
    pool = new_pool([30, None], 6)
    sequences = Sequences(pool)
    for _ in range(3):
        sequence = sequences.start(list(range(41)))
        assert sequence is not None and sequence.length == 0
        sequences.advance(sequence, 40)
        sequences.end(sequence, "finish")
        sequences.check()
        (node,) = pool.root.children.values()
        assert NO_PAGE not in node.pages
        take_away(pool, node, group=0)
        sequences.check()


def test_what_went_unused_for_longest_goes_first() -> None:
    pool = new_pool([None], 3)
    sequences = Sequences(pool)
    for text in (1, 2, 1, 3):  # one page each, and one to go on
        sequence = sequences.start([text] * PAGE + [0])
        assert sequence is not None
        sequences.advance(sequence, PAGE)
        sequences.end(sequence, "finish")
    assert [tokens[0] for tokens in pool.root.children] == [1, 3]


def test_extending_beyond_the_pages_keeps_what_could_be_had() -> None:
    for windows in ([None], [100, None]):
        sequences = Sequences(new_pool(windows, 3))
        sequence = sequences.start([7] * 500)
        assert sequence is not None
        assert not sequences.pool.extend(sequence, 500)
        sequences.check()
        assert sequence.capacity() in (PAGE, 3 * PAGE)
        assert sequences.pool.start([8] * 10) is None, "nothing is left for another"
        sequences.check()


def test_a_prefix_whose_last_page_is_all_that_is_left_can_be_continued() -> None:
    """The page to copy from is evicted when there is no other."""
    sequences, text = Sequences(new_pool([None], 4)), list(range(250))
    for length in (200, 250):  # three whole pages and eight tokens of the fourth, and then all of it
        sequence = sequences.start(text[:length])
        assert sequence is not None and sequence.length == (0 if length == 200 else 3 * PAGE)
        while sequence.length < length:
            assert sequences.advance(sequence, STEP)
        sequences.end(sequence, "finish")
        sequences.check()
