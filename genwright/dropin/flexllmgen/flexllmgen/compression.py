"""CompressionConfig: FlexLLMGen's quantization in groups, as a weight format of ours."""

from dataclasses import dataclass

from genwright.errors import UserError


@dataclass
class CompressionConfig:
    """`group_dim` is of no consequence here: our groups always lie along the reduction dimension."""

    num_bits: int
    group_size: int
    group_dim: int
    symmetric: bool
    enabled: bool = True

    def weight_format(self) -> str | None:
        """The `quant` setting of the engine."""
        return f"int4:g{self.group_size}{'' if self.symmetric else ':asym'}" if self._compresses() else None

    def cache_format(self) -> str:
        """The `kv` setting of the engine, whose groups lie inside one token's vector."""
        return "int4" if self._compresses() else "auto"

    def _compresses(self) -> bool:
        if self.enabled and self.num_bits != 4:
            raise UserError(f"CompressionConfig.num_bits must be 4, as in FlexLLMGen, not {self.num_bits}.")
        return self.enabled
