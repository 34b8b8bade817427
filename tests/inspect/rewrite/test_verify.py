"""A rewrite that was tampered with does not pass."""

import pytest
from fixture_cases import CASES

from genwright.errors import UserError
from genwright.inspect.analysis.analyse import Analysis
from genwright.inspect.rewrite.verify import Header, verify

TAMPERED = [
    ("another value", "max_new_tokens=8 if", "max_new_tokens=9 if"),
    ("a lost argument", "            top_k=args.sizes[0],\n", ""),
    ("another parameter", "temperature=args.alpha", "top_p=args.alpha"),
    ("another order", "top_k=args.sizes[0]", "top_k=args.sizes[1]"),
    ("another name", 'exe.run(\n            "generate"', 'exe.run(\n            "agenerate"'),
    ("a call that is not routed", 'exe.run(\n            "generate", prompt=', "generate(\n            "),
    ("a changed line elsewhere", "default=2 + 1", "default=2 + 2"),
    ("a lost line", '    parser.add_argument("--loud", action="store_true")\n', ""),
    ("a broken header", "FILE_RECORD_PATH = exe", "FILE_RECORD_PATHS = exe"),
    ("not Python", "def main():", "def main(:"),
    ("an added line", "    main()\n", "    main()\n    main()\n"),
]


def rewritten() -> tuple[Analysis, str, Header]:
    made = next(c for c in CASES if c.name == "argparse_options").rewrite()
    start, end = made.text.index("import sys\n"), made.text.index("\nimport argparse")
    return made.analysis, made.text, Header("exe", made.text[start:end], "")


def test_an_honest_rewrite_passes() -> None:
    analysis, text, header = rewritten()
    verify(analysis, text, analysis.location.sites, header)


@pytest.mark.parametrize(("what", "old", "new"), TAMPERED, ids=[t[0] for t in TAMPERED])
def test_a_tampered_rewrite_is_refused(what: str, old: str, new: str) -> None:
    analysis, text, header = rewritten()
    assert old in text
    with pytest.raises(UserError, match=r"argparse_options\.py"):
        verify(analysis, text.replace(old, new), analysis.location.sites, header)
