"""A page's handlers are called with what its components give them; with stubs, and with gradio where it is there."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from visited_script import handlers, prompts, visited

from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.analysis.value_choices import TEXT

each_gradio = pytest.mark.parametrize(
    "stubs",
    [True, pytest.param(False, marks=pytest.mark.skipif(find_spec("gradio") is None, reason="gradio is not there"))],
)

# The events stand in any order, and one of them needs what another has put into its component.
BLOCKS = """
import gradio as gr
def clear():
    raise SystemExit("nobody asked")
def user(message, history):
    return "", [*history, message]
def bot(history):
    for letter in generate(history[-1], 1):
        yield [*history, letter]
def look(picture, style, loud, steps, negative_prompt):
    return generate(f"{picture} {style} {loud} {steps} {negative_prompt!r}", 1)
with gr.Blocks() as demo:
    history = gr.State([])
    picture = gr.Image(type="filepath")
    style = gr.Dropdown(choices=["plain", "grand"], label="Style")
    loud, steps, negative = gr.Checkbox(), gr.Slider(value=4, minimum=1, maximum=9), gr.Textbox()
    box, out = gr.Textbox(label="Message"), gr.Textbox()
    gr.Button("Look").click(look, [picture, style, loud, steps, negative], out)
    gr.Button("Clear").click(clear)
    box.submit(user, [box, history], [box, history]).then(fn=bot, inputs=history, outputs=history)
demo.launch()
print("on")
"""


@each_gradio
def test_events_in_any_order(stubs: bool, tmp_path: Path) -> None:
    done = visited(BLOCKS, tmp_path, stubs=stubs)
    seen, said = prompts(done)
    assert said == TEXT and done.output.endswith("on\n")
    assert handlers(done) == ["look returned", "user returned", "bot returned"]
    assert "test_image" in seen and seen.endswith(("plain False 4 ''", "plain False 4 None"))


EXAMPLES = """
import gradio as gr
def talk(text, count):
    if text == "bad":
        raise ValueError("no")
    return generate(text, int(count))
with gr.Blocks() as demo:
    text, count, out = gr.Textbox(), gr.Slider(value=3, minimum=1, maximum=9), gr.Textbox()
    gr.Button("Go").click(talk, [text, count], out)
    gr.Examples([["one"], ["bad"], ["two"]], [text], fn=talk, outputs=out, cache_examples=True)
demo.launch()
"""


@each_gradio
def test_once_per_example(stubs: bool, tmp_path: Path) -> None:
    done = visited(EXAMPLES, tmp_path, stubs=stubs)
    assert prompts(done) == ["one", "two"] and done.seen[0][1]["max_new_tokens"] == 3
    assert handlers(done) == ["talk returned", "talk raised", "talk returned"]
    assert "the handler talk raised ValueError: no" in done.errors


CHAT = """
import gradio as gr
class Bot:
    def respond(self, message, history, system):
        yield generate(f"{message} {history} {system}", 1)
gr.ChatInterface(Bot().respond, additional_inputs=[gr.Textbox("be kind")], examples=EXAMPLES).launch()
"""


@each_gradio
def test_a_chat(stubs: bool, tmp_path: Path) -> None:
    done = visited(CHAT.replace("EXAMPLES", "None"), tmp_path / "plain", stubs=stubs)
    assert prompts(done) == [f"{TEXT} [] be kind"] and handlers(done) == ["Bot.respond returned"]
    done = visited(CHAT.replace("EXAMPLES", "[['a', 'b'], ['c', 'd']]"), tmp_path / "examples", stubs=stubs)
    assert prompts(done) == ["a [] b", "c [] d"]


@each_gradio
def test_the_scenario_comes_first(stubs: bool, tmp_path: Path) -> None:
    done = visited(EXAMPLES, tmp_path, Scenario(handlers=["talk"], handler_arguments={"text": "mine"}), stubs)
    assert prompts(done) == ["mine"] * 3


OLD = """
import types
import gradio as gr
def talk(text):
    return generate(text, 1)
box = gr.Textbox()
demo = gr.Blocks()
demo.blocks, demo.fns = {7: box}, [types.SimpleNamespace(fn=talk)]
demo.dependencies = [{"inputs": [7], "outputs": [7], "trigger_after": None}]
demo.launch()
"""


def test_a_page_as_gradio_3_keeps_it(tmp_path: Path) -> None:
    assert prompts(visited(OLD, tmp_path)) == [TEXT]
