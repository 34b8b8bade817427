"""The report of a run holds everything, escapes everything and loads nothing; so do JUnit and the commentator."""

import base64
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from recorded_runs import record_run, write_run

from genwright.errors import UserError
from genwright.inspect.records.stored_runs import StoredRun
from genwright.inspect.records.stored_values import store_value
from genwright.inspect.report.assertions import check_assertions
from genwright.inspect.report.commentator import comment
from genwright.inspect.report.findings import Finding, find
from genwright.inspect.report.junit import junit
from genwright.inspect.report.run_report import report

HOSTILE = "</pre></title><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x00"


class Page(HTMLParser):
    """The elements and attributes that a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def hostile_run(folder: Path) -> StoredRun:
    script = folder / "script.py"
    folder.mkdir(parents=True)
    script.write_text(f"text = {HOSTILE!r}\n# <script>alert(3)</script>\nask(text)\n")
    Image.fromarray(np.full((40, 60, 3), 120, "uint8")).save(folder / "out<b>.png")
    (folder / "fake.png").write_text("<svg onload=alert(4)>")
    (folder / "output.txt").write_text(HOSTILE)
    store_value(np.zeros((2, 8, 8, 3), "uint8"), folder / "values" / "000002")
    files = [{"path": str(folder / name), "written": True, "bytes": 1} for name in ("out<b>.png", "fake.png")]
    exception = {"type": HOSTILE, "message": HOSTILE, "traceback": [HOSTILE]}
    calls: list[dict[str, Any]] = [
        {"interface": HOSTILE.replace("/", "").replace("\0", ""), "line": 3, "arguments": [HOSTILE, {"<b>": HOSTILE}]},
        {"interface": "f", "line": 3, "keywords": {HOSTILE: 1}, "files": files, "value": "values/000002.json"},
        {"interface": "f", "status": "raised", "exception": exception, "started": 5.0, "seconds": 1.0},
    ]
    calls[0] |= {"started": 4.0, "seconds": 0.5}
    return write_run(folder, calls, script=str(script), argv=[HOSTILE], scenario={"assertions": [HOSTILE, "1 == 1"]})


def page_of(run: StoredRun, **more: str) -> str:
    findings = [Finding("NaN", 3, HOSTILE, 1), *find(run, [])]
    return report(run, findings, check_assertions(run), **more)


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    text = page_of(hostile_run(tmp_path / "run"), commentator=HOSTILE, commentary=HOSTILE)
    page = Page(text)
    assert "script" not in page.tags and "onerror" not in dict(page.attributes)
    assert set(page.tags) <= {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "span", "p", "table", "tr", "th", "td"),
        *("div", "pre", "code", "br", "a", "svg", "text", "rect", "line", "figure", "img", "figcaption", "details"),
        *("summary", "strong"),
    }
    links = [value for name, value in page.attributes if name in ("href", "src")]
    assert links and all(re.fullmatch(r"#(line|call)-\d+|data:image/png;base64,[\w+/=]+", link) for link in links)
    assert "\u202e" not in text and "\\u202e" in text and "\0" not in text


def test_the_policy_allows_the_page_and_nothing_else(tmp_path: Path) -> None:
    text = page_of(hostile_run(tmp_path / "run"))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy is not None and style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:;" in policy.group(1)
    assert " style=" not in text  # which the policy would not apply


def test_what_a_report_shows(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run")
    text = page_of(run)
    # The written image and the two of the array in the result; the file that is no image is left out.
    assert text.count("data:image/png") == 1 and "60 x 40" in text
    assert text.count('<rect class="bar') == 2 and 'class="site"' in text and "<title>call 1:" in text
    assert text.count('class="panel" id="call-') == 3
    source = "from themodel import f\nf(1)\n"
    plain = record_run(tmp_path / "plain", source, {"f": lambda x: np.zeros((4, 4, 3), "uint8")})
    page = report(plain, find(plain, []), [])
    assert "Nothing was found." in page and "result, 4 x 4" in page and '<a href="#call-1">(call 1)' in page


def test_junit(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run")
    suite = ElementTree.fromstring(junit(run, find(run, []), check_assertions(run)))
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    assert [len(case.findall("failure")) for case in suite.findall("testcase")] == [0, 1, 0]
    killed = write_run(tmp_path / "killed", [], status="limit", limit="seconds")
    (case,) = ElementTree.fromstring(junit(killed, [], [])).findall("testcase")
    assert "limit seconds" in case[0].get("message", "")


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))) | {"path": self.path})
            answer = json.dumps({"choices": [{"message": {"content": " It went well. "}}]}).encode()
            self.send_response(200 if asked[-1]["model"] != "broken" else 500)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked
    server.shutdown()
    server.server_close()


def test_a_commentator_is_asked_over_http(tmp_path: Path, endpoint: tuple[str, list[dict[str, Any]]]) -> None:
    run = write_run(tmp_path / "run", [{"interface": "f", "line": 2}])
    address, asked = endpoint
    findings = [Finding("NaN", 2, "the result of f has 1 NaN", 1)]
    assert comment(run, findings, [], f"{address}#tiny") == "It went well."
    assert asked[0]["path"] == "/v1/chat/completions" and asked[0]["model"] == "tiny"
    assert "1 NaN" in asked[0]["messages"][1]["content"]
    with pytest.raises(UserError, match="gave no comment: HTTPError"):
        comment(run, findings, [], f"{address}#broken")


def test_a_commentator_is_a_model_of_ours(tmp_path: Path, smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genwright.inspect.report.commentator._TOKENS", 4)
    assert comment(write_run(tmp_path / "run", [{"interface": "f"}]), [], [], str(smollm2))
