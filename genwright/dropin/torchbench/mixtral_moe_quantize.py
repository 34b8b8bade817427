"""The benchmark's int8 weights for Mixtral."""

from genwright.dropin.transformer.int8 import (
    ConditionalFeedForwardInt8,
    WeightOnlyInt8Linear,
    WeightOnlyInt8QuantHandler,
    dynamically_quantize_per_channel,
)

__all__ = [
    "ConditionalFeedForwardInt8", "WeightOnlyInt8Linear", "WeightOnlyInt8QuantHandler",
    "dynamically_quantize_per_channel",
]  # fmt: skip
