"""The stages of a script's inspection on one page that needs nothing else: HTML with the work flow as a picture."""

import ast
import base64
import hashlib
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from genwright.errors import UserError
from genwright.inspect.analysis.border import Crossing, crossings
from genwright.inspect.analysis.manifest import Interface
from genwright.inspect.report.explain import Writer, plan
from genwright.inspect.report.flowchart import draw
from genwright.inspect.report.messages import translate
from genwright.inspect.report.model_free import handed_over, plain_functions
from genwright.inspect.report.stage_messages import STAGE_SENTENCES
from genwright.inspect.report.steps import Item, Step, steps
from genwright.inspect.report.suggestions import suggestions
from genwright.inspect.rewrite.rewrite import Rewrite

_FOLDER = Path(__file__).parent
_SECTIONS = ("for", "interface", "blocks", "changes", "suggestions", "model_free", "flow")
_COLUMNS = ("column_files", "column_script", "column_model")
_MOST_OTHERS = 6


def stages_page(rewrite: Rewrite, project: str, language: str = "en") -> str:
    """One self-contained page; every text of the script is escaped, and the page may load and run nothing."""
    if language not in STAGE_SENTENCES:
        raise UserError(f"Explanations are written in {' or '.join(STAGE_SENTENCES)}, not {language!r}.")
    style = (_FOLDER / "stages.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined
    )
    page = environment.get_template("stages.html.jinja")
    # The style is ours, and the page's policy names its hash, so it is the one text that is not escaped.
    return page.render(style=Markup(style), style_hash=f"sha256-{digest}", **_Stages(rewrite, language).data(project))


class _Stages:
    """What the page's template is given."""

    def __init__(self, rewrite: Rewrite, language: str) -> None:
        self.rewrite, self.analysis, self.language = rewrite, rewrite.analysis, language
        self.writer = Writer(rewrite, language)

    def say(self, key: str, **values: Any) -> str:
        return STAGE_SENTENCES[self.language][key].format(**values)

    def translate(self, sentence: str) -> str:
        return translate(sentence, self.language)

    def data(self, project: str) -> dict[str, Any]:
        rewrite, found = self.rewrite, steps(self.analysis)
        picture = draw(
            found, self.say("top"), {k: self.say(k) for k in ("options", "keyboard", "file", "window", "page")}
        )
        interfaces, others = self.interfaces()
        return {
            "language": self.language,
            "say": self.say,
            "script": self.analysis.script.name,
            "project": project,
            "sections": _SECTIONS,
            "purpose": self.purpose(),
            "summary": self.summary(found),
            "start": self.writer.start(),
            "interfaces": interfaces,
            "others": others,
            "blockers": self.writer.blocking(),
            "chosen": [(c.name, c.value, self.translate(c.reason)) for c in rewrite.chosen],
            "untouched": f"{rewrite.untouched:.1%}",
            "plan": list(plan(self.analysis)),
            "samples": self.writer.samples(),
            "diff": rewrite.diff.splitlines(),
            "suggestions": self.suggestions(),
            "plain": plain_functions(self.analysis),
            "handed": handed_over(self.analysis),
            "reads": _in_order(i for s in found for i in s.reads),
            "writes": _in_order(i for s in found for i in s.writes),
            "picture": picture,
            "columns": list(zip(picture.columns, _COLUMNS, strict=True)),
        }

    def purpose(self) -> list[str]:
        """What the script says of itself: its docstring, else what its command line's help says."""
        text = ast.get_docstring(self.analysis.tree)
        parser = self.analysis.unattended.command_line.parser
        if not text and parser is not None and isinstance(parser.description, str):
            text = parser.description
        return [p for p in (text or "").split("\n\n") if p.strip()][:3]

    def summary(self, found: list[Step]) -> str:
        sites = self.analysis.location.sites
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(s.interface.name for s in sites))
        sentences = [self.say("summary", interfaces=names, count=len(sites))]
        for key, items in (("reads", [s.reads for s in found]), ("writes", [s.writes for s in found])):
            kinds = dict.fromkeys(self.say(i.kind) for listed in items for i in listed)
            if kinds:
                sentences.append(self.say(f"summary_{key}", items=", ".join(kinds)))
        return " ".join(sentences)

    def interfaces(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The interfaces that are called, each with the evidence for it; and candidates that were not taken."""
        analysis = self.analysis
        found = crossings(analysis.repository, analysis.script, analysis.source)
        judged = {c.interface.name: c for c in reversed(found)}  # of one name, the best
        called: dict[tuple[str, str], Interface] = {_key(s.interface): s.interface for s in analysis.location.sites}
        rows = []
        for key, interface in called.items():
            crossing = judged.get(interface.name)
            reasons = self.reasons(crossing) if crossing else [self.say("by_manifest")]
            sites = [s for s in analysis.location.sites if _key(s.interface) == key]
            row = {
                "name": interface.name,
                "module": interface.module,
                "summary": interface.summary,
                "signature": str(interface.signature or "(...)"),
                "score": crossing.score if crossing else None,
                "reasons": reasons,
                "calls": [(s.call.lineno, ", ".join(map(str, s.binding.arguments))) for s in sites],
            }
            rows.append(row)
        taken = {interface.name for interface in called.values()}
        others = [c for c in found if c.interface.name not in taken][:_MOST_OTHERS]
        return rows, [{"name": c.interface.name, "score": c.score, "reasons": self.reasons(c)} for c in others]

    def reasons(self, crossing: Crossing) -> list[str]:
        return [self.translate(r) for r in crossing.reasons]

    def suggestions(self) -> list[tuple[int, str]]:
        found = []
        for s in suggestions(self.rewrite):
            values = {k: self.translate(v) if k in ("reason", "problem") else v for k, v in s.values.items()}
            found.append((s.line, self.say(s.key, **values)))
        return found


def _key(interface: Interface) -> tuple[str, str]:
    return interface.module, interface.name


def _in_order(items: Any) -> list[Item]:
    return sorted(items, key=lambda i: i.line)
