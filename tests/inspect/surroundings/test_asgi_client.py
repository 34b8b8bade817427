"""An ASGI application is started, visited and shut down, without a server."""

import asyncio
import types
from pathlib import Path
from typing import Any

import pytest
from visited_script import handlers, prompts, visited

from genwright.inspect.analysis.value_choices import TEXT
from genwright.inspect.surroundings.asgi_client import AsgiClient, request_method
from genwright.inspect.surroundings.visitor import Visitor


async def ask() -> str:
    return ""


class App:
    """An application by the protocol alone; `fails` is the step of its life that fails."""

    def __init__(self, fails: str = "") -> None:
        self.routes = [types.SimpleNamespace(path="/ask", endpoint=ask, methods={"POST", "HEAD"})]
        self.told: list[str] = []
        self.fails = fails

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            self.told.append(f"{scope['method']} {scope['path']} {scope['state']} {(await receive())['body']!r}")
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"x" * 5000})
            return
        if self.fails == "protocol":
            raise NotImplementedError
        for step in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{step}"
            self.told.append(step)
            scope["state"]["model"] = "ready"
            await send({"type": f"lifespan.{step}.{'failed' if self.fails == step else 'complete'}"})


def visit(app: App) -> list[Any]:
    told: list[Any] = []
    asyncio.run(AsgiClient(app, Visitor([], {}, lambda *report: told.append(report))).visit())
    return told


def test_the_life_of_an_application(capsys: pytest.CaptureFixture[str]) -> None:
    app = App()
    ((name, given, answer, error),) = visit(app)
    assert app.told == ["startup", "POST /ask {'model': 'ready'} b''", "shutdown"]
    assert (name, given, error) == ("POST /ask", {}, None)
    assert answer == {"status": 404, "body": "x" * 2000} and "status 404" in capsys.readouterr().err


def test_an_application_that_does_not_start() -> None:
    with pytest.raises(RuntimeError, match="startup"):
        visit(App("startup"))
    assert len(visit(App("protocol"))) == 1  # it has no lifespan, which the protocol allows


def test_methods() -> None:
    assert [request_method(m) for m in ({"GET", "POST"}, {"GET", "HEAD"}, None)] == ["POST", "GET", "GET"]


FASTAPI = """
from enum import Enum
from fastapi import APIRouter, FastAPI, File, Form, UploadFile
from pydantic import BaseModel, Field
app = FastAPI()
class Style(str, Enum):
    plain = "plain"
class Ask(BaseModel):
    prompt: str
    steps: int = Field(ge=3)
    style: Style
    seed: int | None = None
class Shown(BaseModel):
    prompt: str = Field(examples=["one"])
@app.get("/")
def home():
    raise SystemExit("nobody asked")
@app.post("/ask")
def ask(body: Ask):
    return generate(f"{body.prompt} {body.style.value} {body.seed}", body.steps)
@app.post("/shown")
async def shown(body: Shown):
    return generate(body.prompt, 1)
@app.post("/look/{n}")
async def look(n: int, q: str, file: UploadFile = File(...), name: str = Form(...)):
    return generate(f"{n} {q} {name}", 1)
router = APIRouter(prefix="/v1")
@router.get("/say")
def say(text: str, top: int = 4):
    return generate(text, top)
app.include_router(router)
"""


def test_fastapi(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    done = visited(FASTAPI, tmp_path)
    assert prompts(done) == [f"{TEXT} plain None", "one", f"1 {TEXT} {TEXT}", TEXT]
    assert [k["max_new_tokens"] for _, k in done.seen] == [3, 1, 1, 4]
    assert handlers(done) == [
        f"{route} returned" for route in ("POST /ask", "POST /shown", "POST /look/{n}", "GET /v1/say")
    ]
