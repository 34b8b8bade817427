"""A server is recorded and not started."""

from pathlib import Path

from fixture_cases import PROJECT, run

from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.rewrite.rewrite import rewrite

SCRIPT = """
import asyncio
from http.server import HTTPServer, BaseHTTPRequestHandler
from flask import Flask
from tinymodel import generate
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
    original = tmp_path / "original"
    (original / "flask").mkdir(parents=True)
    (original / "flask" / "__init__.py").write_text("from .app import Flask\n")
    (original / "flask" / "app.py").write_text(
        "class Flask:\n    def __init__(self, name): ...\n    def run(self, **k):\n        raise SystemExit('served')\n"
    )
    (original / "script.py").write_text(SCRIPT)
    manifest = load_manifest(PROJECT / "tinymodel.toml")
    made = rewrite(original / "script.py", manifest, repository=Repository(original))
    blockers = [(b.kind, b.line) for b in made.analysis.unattended.blockers]
    assert blockers == [("server", 8), ("server", 10), ("server", 14)]
    (tmp_path / "new.py").write_text(made.text)
    done = run([str(tmp_path / "new.py")], tmp_path / "run")
    assert done.code == 0 and done.output.endswith("done\n"), done.errors
    served = [r.interface for r in done.records if r.event == "server"]
    forever = ["socketserver.BaseServer.serve_forever", "asyncio.Server.serve_forever"]
    assert served == ["flask.Flask.run", *forever]
