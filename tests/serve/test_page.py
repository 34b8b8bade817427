"""The page in a real browser, and its content-security policy."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from serve.browsing import KEY, ask, force_text, launched, opening, tell, wait_for_answer, wait_for_text
from serve.running import Running, running

from genwright.serve.page_response import FOLDER, Page

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


@pytest.fixture(scope="module")
def server(endless_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A tiny model whose answers never end, an image model, and a key."""
    flags = ("--images", "emoji", "--api-key", KEY, "--max-context", "8192")
    with running(endless_model, tmp_path_factory.mktemp("page"), *flags) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as opened:
        yield opened


@pytest.fixture
def open_page(server: Running, browser: Any) -> Iterator[Callable[..., Any]]:
    with opening(browser, server.url) as opened:
        yield opened


def test_the_policy_allows_the_pages_own_scripts_only(server: Running) -> None:
    status, content = server.request("GET", "/")
    assert status == 200 and server.headers["content-type"].startswith("text/html")
    policy = server.headers["content-security-policy"]
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", content.decode(), re.S)
        hashes = [f"'sha256-{b64encode(sha256(each.encode()).digest()).decode()}'" for each in found]
        assert f"{directive} {' '.join(hashes)};" in policy and hashes
    assert "unsafe" not in policy and "default-src 'none'" in policy
    assert '<link rel="stylesheet' not in content.decode() and "<script src" not in content.decode()
    assert all(path.read_text(encoding="utf-8").encode() in Page().content for path in FOLDER.glob("*.[jc]s*"))


def test_a_conversation_is_streamed_stopped_edited_and_regenerated(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 1300, "height": 700})
    page.fill("#prompt", "First <b>question</b>")
    page.press("#prompt", "Enter")
    early = wait_for_text(page, 40)
    wait_for_text(page, len(early) + 20)
    page.keyboard.press("Escape")
    wait_for_answer(page)
    stopped = page.inner_text(".assistant .body")
    assert stopped.startswith(early), "it grew while it was streamed"
    assert page.inner_text(".user .body") == "First <b>question</b>"
    assert re.fullmatch(r"\d+ tokens · [\d.]+ tokens/s · first after [\d.]+ s · stopped", page.inner_text(".stats"))

    page.fill("[name=max_completion_tokens]", "30")
    page.click("article.user [aria-label='Edit message']")
    page.fill("article.user textarea", "Second question")
    page.click("article.user button:text('Send')")
    page.wait_for_selector(".stats:text('cut at the maximum length')")
    wait_for_answer(page)
    assert page.locator("article").count() == 2 and page.inner_text(".user .body") == "Second question"
    edited = page.inner_text(".assistant .body")
    assert len(edited) == 30 and edited != stopped

    page.click("[aria-label='Regenerate answer']")
    while page.inner_text(".assistant .body") == edited:
        page.wait_for_timeout(20)
    wait_for_answer(page)
    again = page.inner_text(".assistant .body")
    assert len(again) == 30 and page.locator("article").count() == 2

    page.reload()
    assert page.inner_text(".user .body") == "Second question" and page.inner_text(".assistant .body") == again
    assert page.input_value("[name=max_completion_tokens]") == "30"
    page.click("article.assistant [aria-label='Edit message']")
    page.fill("article.assistant textarea", "**Mine**")
    page.click("article.assistant button:text('Save')")
    page.reload()
    assert page.inner_text(".assistant .body strong") == "Mine"


def test_another_tab_may_save_while_the_page_is_loaded(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.add_init_script(
        """{
          const listen = addEventListener;
          window.addEventListener = (kind, listener) => {
            listen.call(window, kind, listener);
            if (kind === "storage") dispatchEvent(new StorageEvent("storage", { key: "genwright.conversation.1" }));
          };
        }"""
    )
    page.reload()
    page.wait_for_selector("#tabs:not([hidden])")


def test_a_reload_in_the_middle_keeps_what_has_arrived(open_page: Callable[..., Any]) -> None:
    page = open_page()
    ask(page, "Go on")
    wait_for_text(page, 20)
    page.reload()
    assert len(page.inner_text(".assistant .body")) > 20
    page.click("[aria-label='Regenerate answer']")
    wait_for_text(page, 20)
    page.click("#stop")
    wait_for_answer(page)
    assert "stopped" in page.inner_text(".stats")


def test_a_script_in_an_answer_is_shown_as_text(open_page: Callable[..., Any]) -> None:
    page = open_page()
    force_text(page, HOSTILE)
    ask(page, HOSTILE)
    wait_for_answer(page)
    assert page.inner_text(".assistant .body") == page.inner_text(".user .body") == HOSTILE
    page.reload()
    assert page.inner_text(".assistant .body") == HOSTILE and page.title() == "Genwright"
    assert page.locator("article script, article img").count() == 0
    refused = "(() => { try { document.body.innerHTML = '<p>'; } catch (error) { return error.name; } })()"
    assert page.evaluate(refused) == "TypeError", "trusted types refuse HTML from any script"


def test_markdown_becomes_nodes_and_keeps_its_tokens(open_page: Callable[..., Any]) -> None:
    page = open_page()
    tell(
        page,
        "# Title\n\nSome *soft* **strong `code`** and ~~old~~ 2 * 3 * 4, snake_case_name.\n\n"
        "1. one\n   - inner\n2. two\n\n> said\n\n| a | b |\n|---|---|\n| 1 | **2** |\n\n"
        "[good](https://example.org/a_(b)) [bad](javascript:alert(1)) ![image](https://example.org/x.png) héllo 🙂\n\n"
        "```python\ndef f(): return '<b>'  # note\n```\n\n---\n" + "> " * 300 + "deep",
    )
    body = page.locator(".assistant .body")
    heads = {"h3": "Title", "em": "soft", "strong code": "code", "del": "old", "ol > li > ul > li": "inner"}
    blocks = {"blockquote p": "said", "td strong": "2", "a": "good", "pre .comment": "# note"}
    for selector, text in (heads | blocks | {"pre": "def f(): return '<b>'  # note"}).items():
        assert body.locator(selector).first.inner_text() == text
    assert "2 * 3 * 4, snake_case_name." in body.inner_text() and "[bad](javascript:alert(1))" in body.inner_text()
    assert body.locator("a").evaluate_all("all => all.map((each) => each.href)") == [
        "https://example.org/a_(b)",
        "https://example.org/x.png",
    ]
    assert body.locator("hr").count() == 1 and body.locator("img").count() == 0
    source = page.evaluate("current.messages[1].content")
    shown = body.locator(".token").evaluate_all(
        "all => all.map((each) => [Number(each.dataset.token), each.textContent])"
    )
    for token, text in shown:
        assert source.encode()[: token + 1].decode().endswith(text), "each node shows its own token"


def test_logprobs_of_the_token_that_is_pointed_at(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 1300, "height": 700})
    page.fill("[name=max_completion_tokens]", "12")
    ask(page, "Hi")
    wait_for_answer(page)
    letters = page.inner_text(".assistant .body")
    page.hover(".token >> nth=3")
    rows = [line.split("\t") for line in page.inner_text("#token").splitlines()]
    assert rows[0] == ["token", "probability", "log"] and 6 <= len(rows) <= 7
    assert page.inner_text("#token .chosen td >> nth=0") == letters[3]
    assert -50 < float(page.inner_text("#token .chosen td >> nth=2")) <= 0
    page.mouse.move(5, 690)
    assert page.is_hidden("#token")
    page.focus(".assistant .body")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#token .chosen td >> nth=0") == letters[1]


def test_a_schema_constrains_the_answer(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 1300, "height": 700})
    page.fill("#schema", '{"enum": ["*a*", "*b*"')
    ask(page, "Hi")
    assert "not JSON" in page.inner_text("#messages .error") and "not JSON" in page.inner_text("#schema-error")
    page.fill("#schema", '{"type": "object", "properties": {"a": {"multipleOf": "x"}}}')
    page.click("[aria-label='Answer the last message']")
    page.wait_for_selector("#messages .error:text('multipleOf')")
    page.fill("#schema", '{"enum": ["*a*", "*b*"]}')
    assert page.is_visible("#constrained")
    page.click("[aria-label='Answer the last message']")
    wait_for_answer(page)
    assert json.loads(page.inner_text(".assistant pre")) in ("*a*", "*b*")


def test_several_conversations_system_prompt_and_export(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 1300, "height": 700})
    page.fill("#system", "Be brief.")
    asked = []
    page.on("request", lambda request: asked.append(request.post_data_json) if request.post_data else None)
    tell(page, "one")
    assert asked[0]["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go"}]
    with page.expect_download() as download:
        page.click("#export-json")
    exported = json.loads(Path(download.value.path()).read_text())
    assert exported["messages"][1:] == [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "one"}]
    with page.expect_download() as download:
        page.click("#export-markdown")
    assert "## assistant\n\none\n" in Path(download.value.path()).read_text()
    page.click("#new-chat")
    assert page.locator("article").count() == 0
    tell(page, "two")
    assert page.locator("#conversations li").count() == 2
    page.click("#conversations li:last-child button >> nth=0")
    assert page.inner_text(".assistant .body") == "one"
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#conversations li:last-child button >> nth=1")
    assert page.inner_text(".assistant .body") == "two"
    page.reload()
    assert page.locator("#conversations li").count() == 1


def test_an_answer_goes_on_while_another_conversation_is_open(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 1300, "height": 700})
    page.fill("[name=max_completion_tokens]", "10")
    ask(page, "Short")
    wait_for_answer(page)
    short = page.inner_text("#messages")
    page.click("#new-chat")
    page.fill("[name=max_completion_tokens]", "")
    ask(page, "Long")
    length = len(wait_for_text(page, 20))
    page.click("#conversations button:text('Short')")
    assert page.is_visible("#send") and page.inner_text("#messages") == short
    page.wait_for_timeout(200)
    assert page.inner_text("#messages") == short
    page.click("#conversations button:text('Long')")
    wait_for_text(page, length + 20)
    page.click("#stop")
    wait_for_answer(page)
    page.evaluate("localStorage.setItem('filler', 'x'.repeat(5 * 1024 * 1024 - JSON.stringify(localStorage).length))")
    ask(page, "x" * 3000)
    page.wait_for_selector("#messages [role=alert]:text('storage is full')")


def test_an_image_grid(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.click("#images-tab")
    page.select_option("#image-class", index=1)
    for name, value in (("count", "4"), ("seed", "7"), ("steps", "2")):
        page.fill(f"#image-{name}", value)
    page.click("#image-send")
    page.wait_for_selector("#grid img >> nth=3")
    images = page.locator("#grid img")
    assert images.evaluate_all("all => all.every((each) => each.complete && each.naturalWidth > 8)")
    assert images.first.get_attribute("alt").endswith("image 1 of seed 7") and "4 images" in page.inner_text(
        "#image-status"
    )
    first = images.evaluate_all("all => all.map((each) => each.src)")
    page.evaluate("find('grid').replaceChildren()")
    page.click("#image-send")
    page.wait_for_selector("#grid img >> nth=3")
    assert images.evaluate_all("all => all.map((each) => each.src)") == first, "the same seed draws the same images"


def test_a_key_is_asked_for(open_page: Callable[..., Any]) -> None:
    page = open_page(key=None)
    page.wait_for_selector("#key-dialog[open]")
    assert page.locator("#model option").count() == 0
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    page.wait_for_selector("#key-error:text('not one of this server')")
    page.fill("#key", KEY)
    page.press("#key", "Enter")
    page.wait_for_selector("#tabs:not([hidden])")
    page.reload()
    page.wait_for_selector("#tabs:not([hidden])")
    assert page.evaluate("JSON.stringify(localStorage)").find(KEY) < 0, "it is kept for the tab only"


def test_a_phone_in_the_dark_and_names_for_everything(open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 390, "height": 780}, color_scheme="dark", has_touch=True)
    tell(page, "```\n" + "wide " * 60 + "\n```\n" + "x" * 300)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.is_hidden("#list") and page.is_hidden("#settings")
    page.tap("#open-list")
    assert page.is_visible("#new-chat") and page.get_attribute("#open-list", "aria-expanded") == "true"
    page.tap("#conversations button >> nth=0")
    assert page.is_hidden("#list")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.tap("#theme")
    assert page.evaluate(background) == "rgb(255, 255, 255)" != dark
    page.tap("#open-settings")
    page.tap("#open-list")
    assert page.is_hidden("#settings") and page.is_visible("#list")
    page.tap("#open-settings")
    assert page.is_visible("#settings") and page.is_hidden("#list")
    nameless = """[...document.querySelectorAll('button, input, select, textarea')].filter((each) =>
        !(each.getAttribute('aria-label') || each.textContent || each.labels?.[0]?.textContent).trim())"""
    assert page.evaluate(f"{nameless}.length") == 0


def test_errors_are_the_servers_sentences(open_page: Callable[..., Any]) -> None:
    page = open_page()
    ask(page, "x" * 9000)
    page.wait_for_selector("#messages [role=alert]:text('context length is 8,192')")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.click("[aria-label='Answer the last message']")
    page.wait_for_selector("#messages [role=alert]:text('cannot be reached')")
