"""Take the screenshots of serve.md, through playwright and Debian's Chromium.

Run in the repository's root beside `genwright serve --images emoji`: `python docs/page_screenshots.py`.
"""

import io
import shutil
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

URL = "http://127.0.0.1:8000"
QUESTION = "Write a Python function that adds two numbers, and a list of two uses."
SCHEMA = """{
  "type": "object",
  "properties": {
    "city": {"type": "string"},
    "country": {"type": "string"}
  },
  "required": ["city", "country"],
  "additionalProperties": false
}"""
DESK, PHONE = {"width": 1100, "height": 700}, {"width": 390, "height": 780}


def open_page(browser: Browser, **options: Any) -> Any:
    page = browser.new_page(**options)
    page.set_default_timeout(90_000)
    page.add_init_script("localStorage['genwright.settings'] ??= '{\"temperature\": 0}'")
    page.goto(URL)
    page.wait_for_selector("#tabs:not([hidden])")
    return page


def ask(page: Any, text: str = QUESTION) -> None:
    page.fill("#prompt", text)
    page.click("#send")
    page.wait_for_selector("#stop", state="hidden")


def save(page: Any, name: str) -> None:
    """At 128 colours, which is a third of the size."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(128).save(f"docs/serve-{name}.png", optimize=True)
    page.close()


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = open_page(browser, viewport=DESK)
        ask(page)
        page.evaluate("find('messages').scrollTop = 0")
        page.hover(".assistant .body > p .token >> nth=2")
        save(page, "chat")
        page = open_page(browser, viewport=DESK, color_scheme="dark")
        page.click("#open-settings")
        page.fill("#system", "You know all cities.")
        page.fill("#schema", SCHEMA)
        ask(page, "What is the capital of France?")
        save(page, "dark")
        page = open_page(browser, viewport=PHONE, has_touch=True)
        ask(page)
        page.evaluate("find('messages').scrollTop = 0")
        save(page, "phone")
        page = open_page(browser, viewport=DESK)
        page.click("#images-tab")
        for name, value in (("count", "32"), ("seed", "7")):
            page.fill(f"#image-{name}", value)
        page.click("#image-send")
        page.wait_for_selector("#grid img")
        save(page, "images")


if __name__ == "__main__":
    main()
