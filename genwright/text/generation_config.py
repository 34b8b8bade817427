"""generation_config.json: the sampling that a model's authors recommend."""

from typing import Any

from genwright.errors import UserError
from genwright.text.config_file import FieldReader
from genwright.text.engine.request import SamplingParams

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def recommended_sampling(read: FieldReader) -> dict[str, Any]:
    """The fields of SamplingParams that a configuration sets."""
    given = {key: value for key in _SAMPLING if (value := read.config.get(key)) is not None}
    if given.get("top_k") == -1:  # vLLM's value for no limit
        given["top_k"] = 0
    if read.flag("do_sample", not given.keys() <= {"repetition_penalty"}):
        given.setdefault("temperature", 1.0)  # as in transformers
    else:
        given = {key: value for key, value in given.items() if key == "repetition_penalty"}
    try:
        SamplingParams(**given)
    except UserError as error:
        raise UserError(f"{read.where}: {error}") from None
    return given
