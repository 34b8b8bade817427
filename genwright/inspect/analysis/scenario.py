"""The scenario: what an unattended run is given, in TOML."""

import json
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.source_files import read_data


@dataclass(frozen=True)
class Scenario:
    """Everything that a person at the keyboard would have given, and what the run must obey."""

    argv: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    interface: list[str] = field(default_factory=list)
    assertions: list[str] = field(default_factory=list)
    overrides: dict[str, Any] = field(default_factory=dict)
    entry: str = ""
    handlers: list[str] = field(default_factory=list)
    handler_arguments: dict[str, Any] = field(default_factory=dict)
    failures: str = "raise"  # or "none": an interface that fails gives None, and the script goes on
    dropin: str = ""  # the original whose modules Genwright's stand in for

    def for_run(self) -> dict[str, Any]:
        """What the run itself must obey, for its record."""
        ui = {k: v for k, v in {"handler": self.handlers, "arguments": self.handler_arguments}.items() if v}
        kept: dict[str, Any] = {
            "ui": ui,
            "environment": self.environment,
            "limits": self.limits,
            "assertions": self.assertions,
            "failures": self.failures if self.failures != "raise" else "",
            "dropin": self.dropin,
        }
        return {k: v for k, v in kept.items() if v}


_LIMITS = ("seconds", "cpu_seconds", "memory_gb", "output_mb", "processes", "calls")
_FAILURES = ("raise", "none")


def load_scenario(path: Path) -> Scenario:
    """Read and check a scenario file."""
    try:
        data = tomllib.loads(read_data(path, "scenario"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"The scenario {path} is not valid TOML: {error}.") from error
    scenario = parse_scenario(data, str(path))
    # A path that leads to something from the scenario's own folder means that.
    beside = {k: path.parent / v for k, v in scenario.resources.items() if not Path(v).is_absolute()}
    found = {k: str(file.resolve()) for k, file in beside.items() if file.exists()}
    return replace(scenario, resources=scenario.resources | found)


def parse_scenario(data: dict[str, Any], where: str) -> Scenario:
    """Check a scenario's data; `where` names it in errors."""
    known = {"argv", "answers", "environment", "resources", "limits", "interface", "assertions", "set", "entry", "ui"}
    known |= {"failures", "dropin"}
    unknown = sorted(set(data) - known)
    if unknown:
        raise UserError(f"{where}: a scenario has no {unknown[0]!r}; it has {', '.join(sorted(known))}.")
    ui = _table(data, "ui", where)
    if set(ui) - {"handler", "arguments"}:
        raise UserError(
            f"{where}: [ui] has `handler` and `arguments`, not {min(set(ui) - {'handler', 'arguments'})!r}."
        )
    limits = _table(data, "limits", where)
    for name, value in limits.items():
        if name not in _LIMITS or isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise UserError(
                f"{where}: limit {name} = {value!r} is not one of {', '.join(_LIMITS)} with a positive number."
            )
    entry, dropin = data.get("entry", ""), data.get("dropin", "")
    if not isinstance(entry, str) or not isinstance(dropin, str):
        raise UserError(f"{where}: `entry` and `dropin` are texts.")
    failures = data.get("failures", "raise")
    if failures not in _FAILURES:
        raise UserError(f"{where}: `failures` is one of {', '.join(_FAILURES)}, not {failures!r}.")
    overrides = _flatten(_table(data, "set", where))
    for name in overrides:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UserError(f"{where}: [set] {name!r} is not a qualified name such as main.num_samples.")
    return Scenario(
        [str(v) for v in _texts(data, "argv", where, (str, int, float))],
        _texts(data, "answers", where, (str,)),
        {k: str(v) for k, v in _table(data, "environment", where).items()},
        {k: str(v) for k, v in _table(data, "resources", where).items()},
        limits,
        _texts(data, "interface", where, (str,)),
        _texts(data, "assertions", where, (str,)),
        overrides,
        entry,
        _texts(ui, "handler", where, (str,)),
        _table(ui, "arguments", where),
        failures,
        dropin,
    )


def to_toml(scenario: Scenario, notes: list[str]) -> str:
    """A scenario file that reads back as this scenario; `notes` stand in front as comments."""
    lines = [f"# {' '.join(note.split())}" for note in notes]
    plain = {
        "argv": scenario.argv,
        "answers": scenario.answers,
        "interface": scenario.interface,
        "entry": scenario.entry,
        "assertions": scenario.assertions,
        "failures": scenario.failures if scenario.failures != "raise" else "",
        "dropin": scenario.dropin,
    }
    lines += [f"{key} = {toml_value(value)}" for key, value in plain.items() if value or key in ("argv", "answers")]
    tables: dict[str, dict[str, Any]] = {
        "environment": scenario.environment,
        "resources": scenario.resources,
        "limits": scenario.limits,
        "ui": scenario.for_run().get("ui", {}),
    }
    for name, table in tables.items():
        if table:
            lines += ["", f"[{name}]", *(f"{json.dumps(k)} = {toml_value(v)}" for k, v in table.items())]
    if scenario.overrides:
        lines += ["", "[set]", *(f"{k} = {toml_value(v)}" for k, v in scenario.overrides.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A value as TOML writes it; a table is written inline."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        items = ", ".join(f"{json.dumps(k)} = {toml_value(v)}" for k, v in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, float):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def literal(value: Any) -> str:
    """A scenario's value as Python writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float({str(value)!r})"
    if not isinstance(value, str | bool | int | float):
        raise UserError(
            f"The value {value!r} cannot be written as a Python literal; use text, numbers, lists or tables."
        )
    return repr(value)


def _texts(data: dict[str, Any], key: str, where: str, kinds: tuple[type, ...]) -> list[Any]:
    values = data.get(key, [])
    if isinstance(values, str) and key in ("interface", "handler"):
        return [values]
    if not isinstance(values, list) or not all(isinstance(v, kinds) and not isinstance(v, bool) for v in values):
        raise UserError(f"{where}: `{key}` is a list of texts.")
    return values


def _table(data: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise UserError(f"{where}: [{key}] is a table.")
    return table


def _flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """TOML reads `main.num_samples = 1` as tables in tables; an inline table with a key that is no name is a value."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and all(isinstance(k, str) and k.isidentifier() for k in value):
            flat |= _flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat
