"""Explain a script in the stages of the Inspection traces, from analysis alone."""

import ast
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.analyse import Analysis
from genwright.inspect.analysis.interpreter_values import Unknown
from genwright.inspect.analysis.outputs import output_variables
from genwright.inspect.analysis.resources import by_kind
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.analysis.syntax import Function, is_main_guard
from genwright.inspect.report.messages import SENTENCES, STAGES, translate
from genwright.inspect.report.steps import Step, steps
from genwright.inspect.rewrite.call_edits import call_edits
from genwright.inspect.rewrite.edits import splice
from genwright.inspect.rewrite.rewrite import Rewrite, route


def explain(rewrite: Rewrite, project: str, scenario: Scenario, language: str = "en") -> str:
    """The stages as the traces write them, each under its heading."""
    if language not in STAGES:
        raise UserError(f"Explanations are written in {' or '.join(STAGES)}, not {language!r}.")
    started = time.perf_counter()
    writer = Writer(rewrite, language)
    unattended = route(rewrite.prepared, project, scenario, "simulation", rewrite.samples.name, sites=False)
    parts = [
        writer.logic(),
        writer.blockers(),
        f"```python\n{unattended}```",
        writer.sites(),
        writer.plan(),
        f"```python\n{rewrite.text}```",
        writer.outputs(),
        writer.resources(),
        f"```json\n{json.dumps(by_kind(rewrite.samples.resources), ensure_ascii=False, indent=4)}\n```",
    ]
    seconds = rewrite.seconds + time.perf_counter() - started
    parts.append(SENTENCES[language]["time"].format(seconds=seconds))
    return "\n\n\n".join(f"$$$$${h}$$$$$\n{p}" for h, p in zip(STAGES[language], parts, strict=True)) + "\n"


def explain_data(rewrite: Rewrite, project: str, scenario: Scenario) -> dict[str, Any]:
    """The same for programs."""
    analysis = rewrite.analysis
    unattended = analysis.unattended
    return {
        "script": str(analysis.script),
        "imports": imports(analysis),
        "defines": [{"name": n, "line": line, "summary": s} for n, line, s in definitions(analysis)],
        "flow": flow(analysis),
        "blockers": [vars(b) for b in unattended.blockers],
        "command_line": {
            "kind": unattended.command_line.kind,
            "options": [_option(o) for o in unattended.command_line.options],
        },
        "missing": rewrite.missing,
        "chosen": [vars(c) for c in rewrite.chosen],
        "unattended_code": route(rewrite.prepared, project, scenario, "simulation", rewrite.samples.name, sites=False),
        **analysis.location.to_dict(),
        "plan": [{"line": line, "before": b, "after": a} for line, b, a in plan(analysis)],
        "routed_code": rewrite.text,
        "output_variables": output_variables(analysis.outputs),
        "outputs": [o.to_dict() for o in analysis.outputs],
        "resources": by_kind(rewrite.samples.resources),
        "resource_list": [r.to_dict() for r in rewrite.samples.resources],
        "seconds": round(rewrite.seconds, 3),
    }


def _option(option: Any) -> dict[str, Any]:
    default = option.default.text if isinstance(option.default, Unknown) else option.default
    plain = default is None or isinstance(default, str | int | float | bool | list)
    return {
        "name": option.name,
        "flags": list(option.flags),
        "type": option.type,
        "default": default if plain else str(default),
        "required": option.required,
        "choices": [str(c) for c in option.choices],
        "help": option.help,
        "command": option.command,
    }


def imports(analysis: Analysis) -> dict[str, list[str]]:
    """Imported packages, sorted by where they come from."""
    found: dict[str, list[str]] = {"standard": [], "repository": [], "others": []}
    for node in ast.walk(analysis.tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        for name in names:
            top = name.partition(".")[0]
            if not top or analysis.repository.find(name, analysis.script):
                found["repository"].append(name)
            else:
                found["standard" if top in sys.stdlib_module_names else "others"].append(name)
    return {kind: list(dict.fromkeys(names)) for kind, names in found.items()}


def definitions(analysis: Analysis) -> Iterator[tuple[str, int, str]]:
    for node in analysis.tree.body:
        if isinstance(node, Function | ast.ClassDef):
            arguments = f"({ast.unparse(node.args)})" if not isinstance(node, ast.ClassDef) else ""
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            yield f"{'class ' if not arguments else ''}{node.name}{arguments}", node.lineno, summary


def flow(analysis: Analysis) -> list[str]:
    """The script's own functions and its interface sites, in the order in which they are first reached."""

    def told(step: Step) -> Iterator[str]:
        for reached in step.reached:
            if isinstance(reached, Step):
                yield f"{reached.name}()"
                yield from told(reached)
            else:
                yield f"{reached.interface.name}:{reached.call.lineno}"

    return list(dict.fromkeys(told(steps(analysis)[0])))


def plan(analysis: Analysis) -> Iterator[tuple[int, str, str]]:
    """Each site's text before and after."""
    source, name = analysis.text, analysis.script.name
    for site in analysis.location.sites:
        start, end = source.span(site.call)
        after = "".join(splice(source.text, call_edits(site, "exe", source), start, end, name))
        yield site.call.lineno, source.text[start:end], after


class Writer:
    """The sentences about one rewrite, in one language."""

    def __init__(self, rewrite: Rewrite, language: str) -> None:
        self.rewrite, self.analysis, self.language = rewrite, rewrite.analysis, language

    def say(self, key: str, **values: Any) -> str:
        return SENTENCES[self.language][key].format(**values)

    def translate(self, sentence: str) -> str:
        """What another module said in English."""
        return translate(sentence, self.language)

    def logic(self) -> str:
        analysis = self.analysis
        listed = {kind: ", ".join(names) or self.say("none") for kind, names in imports(analysis).items()}
        lines = [self.say("imports", **listed), "", self.say("defines")]
        lines += [
            f"- `{name}` ({line})" + (f": {summary}" if summary else "")
            for name, line, summary in definitions(analysis)
        ]
        reached = flow(analysis)
        lines += ["", self.start()] + ([self.say("flow")] if reached else [])
        return "\n".join([*lines, *(f"{i}. `{name}`" for i, name in enumerate(reached, 1))])

    def start(self) -> str:
        """How the script starts."""
        unattended = self.analysis.unattended
        guards = [n for n in self.analysis.tree.body if is_main_guard(n)]
        if guards:
            return self.say("entry_guard", line=guards[0].lineno)
        if unattended.has_entry:
            return self.say("entry_top")
        return self.say("entry_added", entry=unattended.entry) if unattended.entry else self.say("entry_missing")

    def blocking(self) -> list[str]:
        """What would block an unattended run, and what is done about it."""
        blockers = self.analysis.unattended.blockers
        return [self.say(b.kind, line=b.line, text=b.text) for b in blockers] or [self.say("no_blockers")]

    def blockers(self) -> str:
        unattended = self.analysis.unattended
        lines = [f"- {sentence}" if unattended.blockers else sentence for sentence in self.blocking()]
        options = unattended.command_line.options
        if options:
            lines += ["", self.say("options")]
            for option in options:
                default = option.default.text if isinstance(option.default, Unknown) else repr(option.default)
                shown = self.say("required") if option.required else default
                lines.append(f"- `{option.label}` = {shown}" + (f": {option.help}" if option.help else ""))
        if self.rewrite.missing:
            lines += ["", self.say("missing"), *(f"- {self.translate(m)}" for m in self.rewrite.missing)]
        if self.rewrite.chosen:
            lines += ["", self.say("chosen")]
            lines += [f"- `{c.name}` = `{c.value}`: {self.translate(c.reason)}" for c in self.rewrite.chosen]
        return "\n".join(lines)

    def sites(self) -> str:
        lines: list[str] = []
        for site in self.analysis.location.sites:
            factory = self.say("by_factory", factory=site.factory) if site.factory else ""
            values = {"name": site.interface.name, "owner": site.interface.owner, "object": site.receiver}
            lines.append(f"- {self.say(site.kind, line=site.call.lineno, factory=factory, **values)}")
            arguments = ", ".join(f"`{a}`" for a in site.binding.arguments) or self.say("none")
            lines.append(f"  - {self.say('arguments', arguments=arguments)}")
            if site.binding.problem:
                lines.append(f"  - {self.say('problem', problem=self.translate(site.binding.problem))}")
            if site.note:
                lines.append(f"  - {self.translate(site.note)}")
        lines = lines or [self.say("no_sites")]
        unresolved = self.analysis.location.unresolved
        if unresolved:
            lines += [
                "",
                self.say("unresolved"),
                *(f"- {u.line}: `{u.text}`: {self.translate(u.reason)}" for u in unresolved),
            ]
        return "\n".join(lines)

    def plan(self) -> str:
        lines = [self.say("registered", name=i.name) for i, _ in self.analysis.location.defined]
        for line, before, after in plan(self.analysis):
            lines += [self.say("replace", line=line), f"```python\n{before}\n```", "->", f"```python\n{after}\n```"]
        return "\n".join(lines) or self.say("no_sites")

    def outputs(self) -> str:
        outputs = self.analysis.outputs
        lines = [self.say("outputs"), f"```list\n{output_variables(outputs)}\n```"]
        for o in outputs:
            values = {**vars(o), "kind": self.say(o.kind)}
            lines.append(f"- {self.say('output', **values)}")
        return "\n".join(lines)

    def resources(self) -> str:
        return "\n".join(f"- {sentence}" for sentence in self.samples()) or self.say("no_resources")

    def samples(self) -> list[str]:
        """Each placeholder path that a sample stands in for."""
        found = []
        for r in self.rewrite.samples.resources:
            shape = self.say("folder" if r.folder else "file")
            values = {
                "value": r.value,
                "variable": r.variable,
                "kind": self.say(r.kind),
                "shape": shape,
                "sample": r.sample,
                "opened_by": r.opened_by,
                "reason": self.say(r.reason),
            }
            found.append(self.say("resource", line=r.node.lineno, **values))
        return found
