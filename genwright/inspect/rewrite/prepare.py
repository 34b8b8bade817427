"""The scenario's `[set]` in a script, before any call is routed.

It is the same whether the script is then rewritten or run as it is with its interfaces wrapped.
"""

from genwright.inspect.analysis.analyse import Analysis
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.rewrite.edits import Edits, apply
from genwright.inspect.rewrite.overrides import plan_overrides


def prepare(analysis: Analysis, scenario: Scenario) -> tuple[str, dict[str, str]]:
    """The script's source with the scenario's changes, and what each name of `[set]` was before."""
    edits = Edits(analysis.text)
    overridden = plan_overrides(analysis.tree, scenario.overrides, edits)
    if not edits.pieces and not edits.module_head and not edits.module_tail:
        return analysis.source, overridden
    return apply(edits, analysis.tree, analysis.script.name), overridden
