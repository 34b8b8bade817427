"""The engine's thread where processes begin and end: after a fork, and when the interpreter exits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from text.engine.test_loop import FEW, load
from text.tiny_chat import make_chat_model

from genwright import LLM
from genwright.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return load(folder)


def test_a_forked_child_is_told_to_load_the_model_itself(llm: LLM) -> None:
    llm.generate([[5]], FEW)
    child = os.fork()
    if not child:
        try:
            llm.generate([[5]], FEW)
        except UserError as error:
            llm.close()
            os._exit(7 if "load it in the child process" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert llm.generate([[5]], FEW)[0].finish_reason == "length"


EXIT = """
import sys, threading
from genwright import LLM, SamplingParams
llm = LLM(sys.argv[1], device="cpu", dtype="float32")
started = threading.Event()
endless = SamplingParams(max_new_tokens=4000)
stream = llm.stream([5], endless)
next(stream)
threading.Thread(target=llm.generate, args=([[6]], endless, lambda piece: started.set()), daemon=True).start()
started.wait()
"""


def test_the_interpreter_exits_while_requests_run(folder: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", EXIT, folder], env=environment, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
