"""ModelFacts: the sizes of a model that its placement depends on, in plain numbers."""

from dataclasses import dataclass

from genwright.kernels import PAGE


@dataclass(frozen=True)
class ModelFacts:
    """Sizes in bytes and counts of numbers; those of a block are means over all blocks."""

    layers: int
    itemsize: int  # of the numbers that are computed with
    outer: int  # bytes of the weights outside the blocks, which stay on the compute device
    block: float  # bytes of a block's weights, as they are stored
    largest_block: int
    widened: int  # bytes of the largest packed weight once it is widened; 0 if none is packed
    parameters: float  # numbers of a block that every token is multiplied with
    head: int  # numbers of the head
    hidden: int  # bytes of a token between two blocks
    working: int  # bytes of a token's intermediate results within a block
    logits: int  # bytes of a token's logits
    cache_row: int  # bytes of a token in a layer's cache
    windows: tuple[int | None, ...]  # of each layer; None for full attention
    attention: int  # operations of a query and a key in a layer
    expert_bytes: float = 0.0  # of `block`, those of all experts together
    expert_parameters: float = 0.0  # numbers of all experts of a block
    experts: int = 1
    top_k: int = 1

    @property
    def packed(self) -> bool:
        """The matrices are quantized."""
        return self.widened > 0

    @property
    def blocks(self) -> float:
        """Bytes of the weights of all blocks."""
        return self.layers * self.block

    def visited(self, tokens: float) -> float:
        """The share of the experts that some of the tokens are expected to choose."""
        return float(1 - (1 - self.top_k / self.experts) ** tokens)

    def moved(self, tokens: float) -> float:
        """Bytes of a block that a step of so many tokens multiplies with."""
        return self.block - self.expert_bytes * (1 - self.visited(tokens))

    def cache_held(self, length: int) -> int:
        """Bytes of a sequence's cache, in whole pages; a window may begin and end inside a page."""
        held = (min(length, length if window is None else window + PAGE) for window in self.windows)
        return self.cache_row * PAGE * sum(-(-tokens // PAGE) for tokens in held)

    def cache_read(self, length: float) -> float:
        """Bytes of cache that a sequence of that length reads to decode one token."""
        return self.cache_row * self.keys(length)

    def keys(self, length: float) -> float:
        """Keys that a sequence's last query sees, of all layers."""
        return sum(min(length, length if window is None else window) for window in self.windows)

    def pairs(self, length: int) -> float:
        """Pairs of a query and a key that it sees in a prompt, of all layers."""
        ends = (min(length, window or length) for window in self.windows)
        return sum(end * (end + 1) / 2 + (length - end) * end for end in ends)
