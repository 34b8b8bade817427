"""What tests do in a browser with the server's page."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEY = "the-key"
# What the browser itself writes to its console when a request is refused, and when a test assigns innerHTML.
EXPECTED = ("Failed to load resource", "This document requires 'TrustedHTML' assignment")


@contextmanager
def launched() -> Iterator[Any]:
    """Chromium; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; see make browser")
    if CHROMIUM is None:
        pytest.skip("There is no Chromium here; make browser installs Debian's.")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM)
        yield opened
        opened.close()


@contextmanager
def opening(browser: Any, url: str) -> Iterator[Callable[..., Any]]:
    """Opens pages in new profiles, with the key unless told otherwise; no error may reach the console."""
    contexts, errors = [], []

    def open_page(key: str | None = KEY, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        if key is not None:
            context.add_init_script(f"sessionStorage.setItem('genwright.key', '{key}')")
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: None if line.text.startswith(EXPECTED) else errors.append(line.text))
        page.goto(url)
        if key is not None:
            page.wait_for_selector("#tabs:not([hidden])")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors


def ask(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.click("#send")


def wait_for_answer(page: Any) -> None:
    page.wait_for_selector("#stop", state="hidden")


def wait_for_text(page: Any, length: int) -> str:
    """The answer once it is longer than this (playwright's wait_for_function needs eval, which the policy forbids)."""
    while len(text := page.inner_text(".assistant .body")) <= length:
        page.wait_for_timeout(20)
    return text


def force_text(page: Any, text: str) -> None:
    """Have the model say this."""

    def change(route: Any) -> None:
        route.continue_(post_data=json.dumps(json.loads(route.request.post_data) | {"regex": re.escape(text)}))

    page.route("**/v1/chat/completions", change)


def tell(page: Any, text: str) -> None:
    """Answer in the server's place, with a token for each byte."""
    tokens = [{"id": 1, "token": "?", "bytes": [byte], "logprob": -1.5, "top_logprobs": []} for byte in text.encode()]
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "logprobs": {"content": tokens}}]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    ask(page, "Go")
    wait_for_answer(page)
