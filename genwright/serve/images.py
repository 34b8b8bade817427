"""POST /v1/images/generations: PNG images of the image model, in base64."""

import base64
import io
import re
import time
from typing import Any

from PIL import Image
from starlette.requests import Request

from genwright.serve.field_checks import object_of
from genwright.serve.generation import compute
from genwright.serve.http_errors import RequestError
from genwright.serve.request_fields import LABEL_FIELDS, NAME, TEXT
from genwright.serve.service import Service

MOST_IMAGES = 256
MOST_STEPS = 1000
SCHEMA = object_of(
    {
        "prompt": {**TEXT, "description": "Names of classes, joined by commas; empty for any."},
        "model": NAME,
        "n": {"type": "integer", "minimum": 1, "maximum": MOST_IMAGES},
        "size": {"type": "string", "description": "auto, or WIDTHxHEIGHT of the model's images."},
        "response_format": {"enum": ["b64_json"]},
        "output_format": {"enum": ["png"]},
        "seed": {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
        "steps": {"type": "integer", "minimum": 1, "maximum": MOST_STEPS},
        "user": LABEL_FIELDS["user"],
    },
    "prompt",
)


async def images(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    """The prompt names the classes of the model in the box; ours are `seed` and `steps`."""
    record = request.scope["record"]
    if service.image_name is None:
        raise RequestError("This server has no image model; start it with --images.", "model", 404, "model_not_found")
    name = given.get("model", service.image_name)
    if name != service.image_name:
        raise RequestError(
            f"There is no image model {name[:100]!r} here; this server has {service.image_name}.",
            "model",
            404,
            "model_not_found",
        )
    record.model = name
    side = service.engine.facts.image_size
    if given.get("size", "auto") not in ("auto", f"{side}x{side}"):
        raise RequestError(f"size must be {side}x{side}, which is the model's, not {given['size'][:20]!r}.", "size")
    asked: dict[str, Any] = {"num_samples": given.get("n", 1), "seed": given.get("seed")}
    if classes := _classes(given["prompt"], service.engine.facts.classes):
        asked["classes"] = classes
    if "steps" in given:
        asked["steps"] = given["steps"]
    array = await compute(service, request, "images", asked)
    data = [{"b64_json": _png(each)} for each in array]
    return {"created": int(time.time()), "data": data, "output_format": "png", "size": f"{side}x{side}"}


def _classes(prompt: str, names: list[str]) -> list[str]:
    """The classes that a prompt names, all of them or joined by commas."""
    words = [word.strip() for word in re.split("[,\n]", prompt) if word.strip()]
    known = {name.lower() for name in names}
    for word in words:
        if word.lower() not in known:
            raise RequestError(
                f"There is no class {word[:60]!r}; the prompt must name some of {', '.join(names)}, joined by commas.",
                "prompt",
            )
    return words


def _png(array: Any) -> str:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")
