"""A handler of websockets gets one message; with stubs, and with websockets where it is there."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from visited_script import handlers, prompts, visited

from genwright.inspect.analysis.value_choices import TEXT

NO_WEBSOCKETS = pytest.mark.skipif(find_spec("websockets") is None, reason="websockets is not there")
each_websockets = pytest.mark.parametrize("stubs", [True, pytest.param(False, marks=NO_WEBSOCKETS)])

LOOPS = {
    "entered": "    async with websockets.serve(handler, 'localhost', 1):\n        await asyncio.Future()",
    "awaited": "    server = await websockets.serve(handler, 'localhost', 1)\n    await server.wait_closed()",
}
SCRIPT = """
import asyncio, json, websockets
async def handler(socket):
    async for message in socket:
        await socket.send(generate(json.loads(message)["prompt"], 1))
async def main():
LOOP
try:
    asyncio.run(main())
finally:
    print("ended")
"""


@each_websockets
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_the_run_ends_however_the_script_waits(loop: str, stubs: bool, tmp_path: Path) -> None:
    done = visited(SCRIPT.replace("LOOP", loop), tmp_path, stubs=stubs)
    assert prompts(done) == [TEXT] and handlers(done) == ["handler returned"] and done.output.endswith("ended\n")
    assert next(r.result for r in done.records if r.event == "handler") == [f"{TEXT}!"]


@each_websockets
def test_a_closed_connection_is_no_error(stubs: bool, tmp_path: Path) -> None:
    source = SCRIPT.replace("LOOP", LOOPS["entered"]).replace("(socket)", "(socket, path)")
    source = source.replace("async for message in socket:", "while message := await socket.recv():")
    done = visited(source.replace('json.loads(message)["prompt"]', "message"), tmp_path, stubs=stubs)
    assert prompts(done) == [TEXT] and handlers(done) == ["handler returned"]


THREADED = """
from websockets.sync.server import serve
def handler(socket):
    while True:
        socket.send(generate(socket.recv(), 1))
with serve(handler, "localhost", 1) as server:
    server.serve_forever()
print("on")
"""


@NO_WEBSOCKETS
def test_a_server_with_threads(tmp_path: Path) -> None:
    done = visited(THREADED, tmp_path, stubs=False)
    assert prompts(done) == [TEXT] and handlers(done) == ["handler returned"] and done.output.endswith("on\n")
