"""A streamlit page runs once, filled in; with stubs, and with streamlit where it is there."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from visited_script import prompts, visited

from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.analysis.value_choices import TEXT

PAGE = """
import streamlit as st
upload = st.file_uploader("Picture", type=["png", "jpg"])
if upload is None:
    st.stop()
mode = st.selectbox("Mode", ["plain", "grand"], index=None)
question = st.text_input("Question")
name = st.text_input("Name", value="Ann")
def press():
    generate("pressed", 1)
if st.button("Clear all"):
    raise SystemExit("cleared")
if st.button("Go", on_click=press):
    generate(f"{upload.name} {len(upload.read()) > 9} {mode} {question} {name}", 1)
for _ in range(2):
    message = st.chat_input("Say")
    if message:
        generate(message, 1)
st.stop()
generate("never", 1)
"""


@pytest.mark.parametrize(
    "stubs",
    [True, pytest.param(False, marks=pytest.mark.skipif(find_spec("streamlit") is None, reason="no streamlit"))],
)
def test_a_page_is_filled_in(stubs: bool, tmp_path: Path) -> None:
    # streamlit refuses two widgets of one kind and label.
    source = PAGE if stubs else PAGE.replace("range(2)", "range(1)")
    done = visited(source, tmp_path, stubs=stubs)
    assert prompts(done) == ["pressed", f"test_image.jpg True plain {TEXT} Ann", TEXT]
    given = Scenario(handler_arguments={"Question": "why", "Name": "Bo"})
    assert prompts(visited(source, tmp_path / "given", given, stubs))[1] == "test_image.jpg True plain why Bo"
