"""A server is not started: its handlers that cross the model are called, and the script goes on."""

import importlib.util
from pathlib import Path

import pytest
from fixture_cases import PROJECT
from visited_script import handlers, prompts, visited

from genwright.inspect.analysis.analyse import analyse
from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.value_choices import TEXT

SERVERS = """
import asyncio
from http.server import HTTPServer, BaseHTTPRequestHandler
from flask import Flask
generate("ready", 1)
app = Flask(__name__)
app.run(port=1)
with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
    server.serve_forever()
async def listen():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with server:
        await server.serve_forever()
asyncio.run(listen())
print("done")
"""


def test_a_script_that_serves_ends(tmp_path: Path) -> None:
    done = visited(SERVERS, tmp_path)
    assert done.output.endswith("done\n")
    served = [r.interface for r in done.records if r.event == "server"]
    forever = ["socketserver.BaseServer.serve_forever", "asyncio.Server.serve_forever"]
    assert served == ["flask.Flask.run", *forever]
    source = (tmp_path / "original" / "script.py").read_text()
    manifest, repository = load_manifest(PROJECT / "tinymodel.toml"), Repository(tmp_path)
    blockers = analyse(source, tmp_path / "original" / "script.py", manifest, repository).unattended.blockers
    assert [(b.kind, b.line) for b in blockers] == [("server", 8), ("server", 10), ("server", 14)]


def real(package: str) -> object:
    missing = importlib.util.find_spec(package) is None
    return pytest.param(False, marks=pytest.mark.skipif(missing, reason=f"{package} is not there"))


FLASK = """
import base64
from flask import Flask, request
app = Flask(__name__)
@app.route("/health")
def health():
    raise SystemExit("nobody asked")
@app.route("/ask/<int:size>", methods=["GET", "POST"])
def ask(size):
    data = request.get_json()
    return generate(f"{data['prompt']} {data.get('style', 'plain')} {size} {request.args.get('top', type=int)}", 1)
@app.route("/look", methods=["POST"])
def look():
    return generate(request.files["image"].read()[:2].hex() + request.form["name"], 1)
@app.route("/bad", methods=["POST"])
def bad():
    picture = base64.b64decode(request.get_json()["image"])
    raise ValueError(generate(picture[:2].hex(), 1))
app.run()
print("on")
"""


@pytest.mark.parametrize("stubs", [True, real("flask")])
def test_flask(stubs: bool, tmp_path: Path) -> None:
    done = visited(FLASK, tmp_path, stubs=stubs)
    assert prompts(done) == [f"{TEXT} plain 1 1", f"ffd8{TEXT}", "ffd8"]
    assert handlers(done) == ["POST /ask/<int:size> returned", "POST /look returned", "POST /bad returned"]
    answers = [r.result["status"] for r in done.records if r.event == "handler"]
    assert answers == [200, 200, 500] and "POST /bad was answered with status 500" in done.errors
    assert done.output.endswith("on\n")


HTTP = """
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        raise SystemExit("nobody asked")
    def do_POST(self):
        data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/generate":
            text = generate(data["prompt"], int(data["max_tokens"]))
            self.send_response(201)
            self.end_headers()
            self.wfile.write(text.encode())
        else:
            self.send_error(404)
ThreadingHTTPServer(("127.0.0.1", 0), Handler).serve_forever()
"""


def test_an_http_server(tmp_path: Path) -> None:
    done = visited(HTTP, tmp_path)
    assert prompts(done) == [TEXT] and handlers(done) == ["POST /generate returned"]
    assert next(r.result for r in done.records if r.event == "handler")["status"] == 201


UVICORN = """
import sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
async def ask(request):
    data = await request.json()
    return StreamingResponse(piece for piece in generate(data["prompt"], 1))
def say(request):
    return StreamingResponse([generate(request.query_params["text"] + str(request.path_params["n"]), 1)])
async def talk(socket):
    await socket.accept()
    while True:
        await socket.send_text(generate((await socket.receive_json())["prompt"], 1))
routes = [Route("/ask", ask, methods=["POST"]), Mount("/v1", routes=[Route("/say/{n:int}", say)])]
app = Starlette(routes=[*routes, WebSocketRoute("/talk", talk)])
if __name__ == "__main__":
    START
    print("on")
"""


@pytest.mark.skipif(importlib.util.find_spec("starlette") is None, reason="starlette is not there")
@pytest.mark.parametrize(
    "start",
    [
        "uvicorn.run(app)",
        "uvicorn.run('script:app', port=1)",
        "uvicorn.Server(uvicorn.Config(app)).run()",
        "import asyncio; asyncio.run(uvicorn.Server(uvicorn.Config(app)).serve())",
    ],
)
def test_starlette(start: str, tmp_path: Path) -> None:
    done = visited(UVICORN.replace("START", start), tmp_path)
    assert prompts(done) == [TEXT, f"{TEXT}1", TEXT] and done.output.endswith("on\n")
    assert handlers(done) == ["POST /ask returned", "GET /v1/say/{n:int} returned", "WEBSOCKET /talk returned"]
