"""Where a script seeds its random numbers."""

import ast
from typing import Any

from genwright.inspect.analysis.syntax import called_name

_SEEDING = {
    "seed", "manual_seed", "manual_seed_all", "set_seed", "seed_everything", "default_rng", "RandomState", "PRNGKey"
}  # fmt: skip


def find_seeds(tree: ast.Module) -> list[dict[str, Any]]:
    """Each call that seeds a generator, with its line and its arguments as they are written."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) in _SEEDING:
            found.append({"line": node.lineno, "call": ast.unparse(node)[:200]})
    return sorted(found, key=lambda seed: seed["line"])
