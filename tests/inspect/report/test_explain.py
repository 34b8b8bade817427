"""An explanation has the traces' stages in their order, the same each time, in both languages."""

import re

import pytest
from fixture_cases import CASES

from genwright.errors import UserError
from genwright.inspect.report.explain import explain, explain_data
from genwright.inspect.report.messages import SENTENCES, STAGES

HEADING = re.compile(r"^\$\$\$\$\$(.+)\$\$\$\$\$$", re.MULTILINE)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_stages_in_order(language: str) -> None:
    for case in CASES:
        made = case.rewrite()
        text = explain(made, "tinymodel", case.scenario, language)
        assert HEADING.findall(text) == STAGES[language], case.name
        again = explain(case.rewrite(), "tinymodel", case.scenario, language)
        assert text.rpartition("$$$$$")[0] == again.rpartition("$$$$$")[0]
        assert made.text in text
        if language == "zh":
            for reason in [u.reason for u in made.analysis.location.unresolved]:
                assert reason not in text, reason


def test_both_languages_say_the_same_things() -> None:
    assert SENTENCES["en"].keys() == SENTENCES["zh"].keys() and len(STAGES["en"]) == len(STAGES["zh"])
    for key, sentence in SENTENCES["en"].items():
        fields = re.compile(r"\{(\w+)")
        assert sorted(fields.findall(sentence)) == sorted(fields.findall(SENTENCES["zh"][key])), key
    with pytest.raises(UserError, match="en or zh, not 'de'"):
        explain(CASES[0].rewrite(), "tinymodel", CASES[0].scenario, "de")


def test_what_a_program_reads() -> None:
    case = next(c for c in CASES if c.name == "class_object")
    data = explain_data(case.rewrite(), "tinymodel", case.scenario)
    made = next(s for s in data["sites"] if s["kind"] == "construction")
    assert made["class"] == "Model" and made["arguments"] == ["path='weights/model.bin'", "size=3"]
    assert data["resources"] == {"images": [], "audios": [], "videos": []}
    assert data["flow"] == ["main()", "Model:9", "ask()", "Model.generate:5", "Model.generate:11", "Model.__call__:14"]
    assert 'exe.run("Model.__call__", x=4)' in [p["after"] for p in data["plan"]]
    assert "exe.run" not in data["unattended_code"] and data["routed_code"].count("exe.run") == 3
    options = next(c for c in CASES if c.name == "argparse_options")
    told = explain_data(options.rewrite(), "tinymodel", options.scenario)["command_line"]
    assert told["kind"] == "argparse" and {"name": "count", "default": 3}.items() <= told["options"][1].items()
