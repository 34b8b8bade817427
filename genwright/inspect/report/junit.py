"""A run's judgement as JUnit XML, which continuous integration systems read."""

import re
from xml.etree import ElementTree

from genwright.inspect.records.stored_runs import StoredRun
from genwright.inspect.report.assertions import Outcome
from genwright.inspect.report.findings import Finding

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # by XML 1.0


def junit(run: StoredRun, findings: list[Finding], outcomes: list[Outcome]) -> str:
    """One test case for the run's end and one for each assertion; findings are told beside them."""
    status = run.data.get("status")
    failed = (status != "ended") + sum(not o.holds for o in outcomes)
    seconds = str(run.data.get("seconds") or 0)
    suite = ElementTree.Element(
        "testsuite", name=_text(run.name), tests=str(1 + len(outcomes)), failures=str(failed), errors="0", time=seconds
    )
    ends = ElementTree.SubElement(suite, "testcase", classname=_text(run.name), name="the run ends", time=seconds)
    if status != "ended":
        told = f"status {status}, exit code {run.data.get('exit_code')}, limit {run.data.get('limit')}"
        ElementTree.SubElement(ends, "failure", message=_text(told))
    for outcome in outcomes:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_text(run.name), name=_text(outcome.assertion), time="0"
        )
        if not outcome.holds:
            ElementTree.SubElement(case, "failure", message=_text(outcome.reason))
    if findings:
        ElementTree.SubElement(suite, "system-out").text = _text("\n".join(map(str, findings)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _text(text: str) -> str:
    return _FORBIDDEN.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
