"""Which weights are dequantized before they are needed, on which stream, and that products do not depend on it."""

from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch

from genwright.quant.formats import parse_format
from genwright.quant.mixed import Mixed

pytest.importorskip("triton")

from genwright.text.ops import unpack_ahead
from genwright.text.ops.unpack_ahead import UnpackAhead

NAMES = "qkv", "out", "gate_up", "down"


class Streams:
    """Stands for the two streams of a GPU: an order of work that the events allow, and what is being captured."""

    def __init__(self, monkeypatch):
        self.log, self.now, self.capturing = [], "main", False
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("second", self))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("main", self))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", self.use)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)

    @contextmanager
    def use(self, stream):
        self.now = stream.name
        yield
        self.now = "main"


class Stream:
    def __init__(self, name, streams):
        self.name, self.streams = name, streams

    def wait_event(self, event):
        assert event.place is not None and event.place[0] != self.name
        self.streams.log.append((self.name, "wait", event.place[1]))


class Event:
    place = None

    def record(self, stream):
        self.place = stream.name, len(stream.streams.log)


@pytest.fixture
def streams(monkeypatch):
    found, real = Streams(monkeypatch), unpack_ahead.unpack

    def logged(weight, *args):
        found.log.append((found.now, "unpack", id(weight)))
        return real(weight, *args)

    monkeypatch.setattr(unpack_ahead, "unpack", logged)
    return found


def new_blocks(layers, device):
    sizes = {"qkv": 48, "out": 32, "gate_up": 96, "down": 32}
    quantize = parse_format("int8").quantize
    return [
        {"norm": torch.ones(4), **{name: quantize(torch.randn(sizes[name], 64, device=device)) for name in NAMES}}
        for _ in range(layers)
    ]


def step(ahead, weights, x):
    for weight in weights:
        y = ahead.multiply(weight, torch.float32, lambda matrix: x @ matrix.t())
        assert torch.equal(y, x @ weight.dequantize(torch.float32).t())


def in_order(blocks, needed=2):
    """The weights of a step; of the last block, only the first ones are dequantized."""
    return [weights[name] for weights in blocks[:-1] for name in NAMES] + [blocks[-1][name] for name in NAMES[:needed]]


def test_each_weight_follows_the_one_of_the_step_before(streams, device):
    blocks, x = new_blocks(3, device), torch.randn(2, 64, device=device)
    ahead, weights = UnpackAhead(torch.device(device)), in_order(blocks)
    ahead.add(blocks)
    step(ahead, weights, x)
    assert streams.log == [("main", "unpack", id(weight)) for weight in weights]
    for _ in range(2):
        streams.log.clear()
        step(ahead, weights, x)
        unpacked = [(stream, what) for stream, kind, what in streams.log if kind == "unpack"]
        assert unpacked == [("main", id(weights[0]))] + [("second", id(weight)) for weight in weights[1:]]


def test_a_weight_is_overwritten_only_after_its_product_and_read_only_when_it_is_ready(streams, device):
    blocks, x = new_blocks(2, device), torch.randn(2, 64, device=device)
    ahead, weights, memory = UnpackAhead(torch.device(device)), in_order(blocks), []

    def product(matrix):
        streams.log.append(("main", "product", matrix.data_ptr()))
        memory.append(matrix.data_ptr())
        return x @ matrix.t()

    ahead.add(blocks)
    for _ in range(3):
        streams.log.clear()
        memory.clear()
        for weight in weights:
            ahead.multiply(weight, torch.float32, product)
    products = [i for i, entry in enumerate(streams.log) if entry[1] == "product"]
    unpacked = [i for i, entry in enumerate(streams.log) if entry[:2] == ("second", "unpack")]
    waits = {name: [entry[2] for entry in streams.log if entry[:2] == (name, "wait")] for name in ("main", "second")}
    assert len(waits["main"]) == len(unpacked) == len(weights) - 1
    assert len(waits["second"]) == len(weights) + 1 and waits["second"][-1] > products[-1]  # and before they are freed
    assert len(set(memory[1:])) == 2 and all(a != b for a, b in pairwise(memory))
    for i in range(1, len(weights)):
        assert waits["main"][i - 1] > unpacked[i - 1]  # the event was recorded after the kernel that dequantizes
        if i > 1:
            assert waits["second"][i - 1] > products[i - 2]  # what is overwritten was read


def test_buffers_exist_only_during_a_step(streams, device):
    blocks, x, held = new_blocks(2, device), torch.randn(2, 64, device=device), []
    ahead, weights = UnpackAhead(torch.device(device)), in_order(blocks)

    def buffers():
        return sum(buffer.memory is not None for buffer in ahead._buffers)

    def product(matrix):
        held.append(buffers())
        return x @ matrix.t()

    ahead.add(blocks)
    for _ in range(2):
        held.clear()
        for weight in weights:
            ahead.multiply(weight, torch.float32, product)
        assert buffers() == 0
    assert held == [0, 1, *[2] * (len(weights) - 2)]


def test_other_orders_and_other_weights_are_computed_too(streams, device):
    blocks, x = new_blocks(2, device), torch.randn(2, 64, device=device)
    ahead, weights = UnpackAhead(torch.device(device)), in_order(blocks, 4)
    ahead.add(blocks)
    for order in (weights, weights[::-1], weights[::2], weights[:3], weights, weights):
        step(ahead, order, x)
    streams.log.clear()
    step(ahead, in_order(new_blocks(2, device)), x)
    assert {entry[:2] for entry in streams.log} == {("main", "unpack")}


def test_parts_of_mixed_weights_take_part(streams, device):
    parts = [parse_format(name).quantize(torch.randn(16, 64, device=device)) for name in ("int8", "int4")]
    ahead, x = UnpackAhead(torch.device(device)), torch.randn(2, 64, device=device)
    ahead.add([{"qkv": Mixed(tuple(parts))}])
    step(ahead, parts * 2, x)
    assert {entry[0] for entry in streams.log if entry[1] == "unpack"} == {"main", "second"}


def test_a_capture_stays_on_its_stream(streams, device):
    blocks, x = new_blocks(2, device), torch.randn(2, 64, device=device)
    ahead, weights = UnpackAhead(torch.device(device)), in_order(blocks)
    ahead.add(blocks)
    step(ahead, weights, x)
    streams.log.clear()
    streams.capturing = True
    step(ahead, weights, x)
    assert streams.log == [("main", "unpack", id(weight)) for weight in weights]


@pytest.mark.gpu
def test_products_on_a_gpu_equal_those_of_one_stream():
    blocks = new_blocks(6, "cuda")
    ahead, weights = UnpackAhead(torch.device("cuda")), in_order(blocks)
    ahead.add(blocks)
    x = torch.randn(512, 64, device="cuda")
    wanted = [x @ weight.dequantize(torch.float32).t() for weight in weights]
    for _ in range(20):
        got = [ahead.multiply(weight, torch.float32, lambda matrix: x @ matrix.t()) for weight in weights]
        for ours, theirs in zip(got, wanted, strict=True):
            assert torch.equal(ours, theirs)
