"""The page of stages: complete in both languages, escaped, and allowed to load nothing."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fixture_cases import CASES, PROJECT

from genwright.errors import UserError
from genwright.inspect.analysis.border import crossings
from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.report.stage_messages import STAGE_SENTENCES
from genwright.inspect.report.stages import stages_page
from genwright.inspect.rewrite.rewrite import rewrite

SECTIONS = ["for", "interface", "blocks", "changes", "suggestions", "model_free", "flow"]
EMPTY = {"meta", "br", "line", "rect", "path"}


class Checker(HTMLParser):
    """Every tag closed in its order; what is linked to, and which sections there are."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.sections: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open += [] if tag in EMPTY else [tag]
        self.links += [v or "" for k, v in attributes if k in ("href", "src", "xlink:href", "action")]
        self.sections += [v or "" for k, v in attributes if tag == "section" and k == "id"]
        assert not [k for k, _ in attributes if k.startswith("on") or k == "style"]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert not checker.open and checker.sections == SECTIONS
    assert checker.links == [f"#{s}" for s in SECTIONS]
    assert not checker.tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    style = page.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"content=\"default-src 'none'; style-src 'sha256-{digest}'\"" in page
    return checker


def test_every_fixture_has_its_page() -> None:
    for case in CASES:
        made = case.rewrite()
        for language, sentences in STAGE_SENTENCES.items():
            page = stages_page(made, "tinymodel", language)
            check(page)
            assert all(sentences[key] in page for key in SECTIONS)
        judged = crossings(made.analysis.repository, made.analysis.script, made.analysis.source)
        for reason in {r for c in judged for r in c.reasons}:
            assert reason not in page, reason  # the last language is Chinese


def test_both_languages_say_the_same_things() -> None:
    fields = re.compile(r"\{(\w+)")
    for key, sentence in STAGE_SENTENCES["en"].items():
        assert sorted(fields.findall(sentence)) == sorted(fields.findall(STAGE_SENTENCES["zh"][key])), key
    assert STAGE_SENTENCES["en"].keys() == STAGE_SENTENCES["zh"].keys()
    with pytest.raises(UserError, match="en or zh, not 'de'"):
        stages_page(CASES[0].rewrite(), "tinymodel", "de")


HOSTILE = '''"""</style><script>alert(1)</script>"""
from tinymodel import generate


def plain(x="</code><img src=x onerror=alert(2)>"):
    """<svg onload=alert(3)>"""
    return x + "</svg>"


answer = input("</title><script>alert(4)</script>{{ 7 * 7 }}")
open("<iframe>.txt", "w").write(generate(plain() + "</td>" + answer, 1))
'''


def test_texts_of_the_script_are_only_text(tmp_path: Path) -> None:
    script = tmp_path / "<b>script.py"
    script.write_text(HOSTILE)
    made = rewrite(script, load_manifest(PROJECT / "tinymodel.toml"), Scenario(), Repository(tmp_path))
    page = stages_page(made, "<i>project")
    check(page)
    assert "{{ 7 * 7 }}" in page and "&lt;iframe&gt;.txt" in page and "&lt;b&gt;script.py" in page
    assert "&lt;svg onload=alert(3)&gt;" in page
