"""Tables of published model shapes."""

from collections.abc import Mapping
from typing import Any

# shared fields, dim, layers, heads, key-value heads, FFN dim, vocabulary, context, RoPE theta, further fields
Row = tuple[Mapping[str, Any], int, int, int, int, int, int, int, float, Mapping[str, Any]]
_FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings", "rope_theta"),
)


def configs(rows: Mapping[str, Row]) -> dict[str, dict[str, Any]]:
    """Each row as a Hugging Face configuration."""
    return {
        name: {**family, **dict(zip(_FIELDS, sizes, strict=True)), **more}
        for name, (family, *sizes, more) in rows.items()
    }
