"""The benchmark's int8 weights for Llama."""

from genwright.dropin.transformer.int8 import (
    WeightOnlyInt8Linear,
    WeightOnlyInt8QuantHandler,
    dynamically_quantize_per_channel,
)

__all__ = ["WeightOnlyInt8Linear", "WeightOnlyInt8QuantHandler", "dynamically_quantize_per_channel"]
