"""A sandbox for chat templates, which come with a checkpoint and are not trusted: it limits time and memory.

Jinja's sandbox keeps a template from Python's internals, but lets it run forever and fill the memory. Here every loop,
call and filter checks the time and the size of its result. Operations that make a large value from small ones are
checked before they run.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from jinja2 import Environment, TemplateError, nodes, pass_context, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_indent, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

_SECONDS = 2.0
_CHARACTERS = 4 << 20  # of one value, and of the rendered text
_ALLOCATED = 128 << 20  # characters of all values that a template creates
_ELEMENT = 32  # characters that count for each element of a list or dict
_BITS = 10_000  # of an integer
# Matches fields of a format string that have, or could have, a width or precision above 999.
_WIDE_FIELD = {"%": r"%\(|%[^a-zA-Z%]*(\d{4}|\*)", "{": r"\{[^{}:]*(\[|:[^{}]*(\d{4}|\{))"}

_FILTERS = (  # Jinja's, without those that enlarge a value and that no chat template uses
    "abs capitalize count d default dictsort e escape first float groupby int items last length list lower map max min"
    " reject rejectattr reverse safe select selectattr sort string trim truncate unique upper wordcount"
)
_LAZY_FILTERS = {"map", "reject", "rejectattr", "select", "selectattr"}
_STRING_METHODS = (
    "capitalize casefold count endswith find index isalnum isalpha isdecimal isdigit islower isnumeric isspace istitle"
    " isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split"
    " splitlines startswith strip swapcase title upper"
)


class Budget:
    """The time and memory that one rendering may still use."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + _SECONDS
        self._characters = _ALLOCATED

    def tick(self) -> None:
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it runs for more than {_SECONDS:g} seconds")

    def charge(self, value: Any) -> Any:
        """Count a value that the template just created."""
        self.tick()
        _size(value)
        if isinstance(value, str):
            self._characters -= len(value)
        elif isinstance(value, list | tuple | dict):
            self._characters -= _ELEMENT * len(value)  # its elements were counted when created
        if self._characters < 0:
            raise SecurityError(f"it makes more than {_ALLOCATED:,} characters of text in all")
        return value


def _limit(size: int) -> None:
    if size > _CHARACTERS:
        raise SecurityError(f"it makes a text or list of more than {_CHARACTERS:,} characters")


def _size(value: Any) -> int:
    """About how many characters a value has as text; raises SecurityError if they are too many."""
    total, remaining = 0, [value]
    while remaining:
        item = remaining.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            total += _ELEMENT * len(item)
            remaining += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            total += _ELEMENT * len(item)
            remaining += item
        elif isinstance(item, int) and item.bit_length() > _BITS:
            raise SecurityError(f"it makes an integer of more than {_BITS:,} bits")
        elif isinstance(item, Namespace) and item is not value:
            raise SecurityError("it puts a namespace into another value")
        _limit(total)
    return total


def join(values: Iterable[Any], separator: str = "") -> str:
    parts: list[str] = []
    total = 0
    for value in values:
        parts.append(str(value))
        total += len(parts[-1]) + len(separator)
        _limit(total)
    return separator.join(parts)


def _replace(text: str, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    _limit(len(text) + text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _check_format(text: str, values: Any, mark: str) -> None:
    """Refuse format strings with wide fields, with widths given by values, or with large values in many fields."""
    if re.search(_WIDE_FIELD[mark], text):
        raise SecurityError("it formats a value to more than 999 characters")
    _limit(len(text) + text.count(mark) * (_size(values) + 1000))


@pass_environment
def _join_filter(environment: Environment, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    return join(value if attribute is None else map(make_attrgetter(environment, attribute), value), str(d))


def _format_filter(text: str, *values: Any) -> str:
    _check_format(text, values, "%")
    return text % values


def _title_filter(text: str) -> str:
    _limit(_ELEMENT * len(text))  # Jinja splits the text into words
    return FILTERS["title"](text)


def _indent_filter(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _limit(len(text) + (len(text.splitlines()) + 1) * (width if isinstance(width, int) else len(width)))
    return do_indent(text, width, first, blank)


def _tojson_filter(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    _limit((indent or 0) * 1000)  # Python's recursion limit bounds the depth
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return join(encoder.iterencode(value))


@pass_context
def _charge(context: Context, value: Any) -> Any:
    return context["#budget"].charge(value)


@pass_context
def _each(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        context["#budget"].tick()
        yield value


@pass_context
def _each_if_any(context: Context, values: Iterable[Any] | None) -> Iterator[Any]:
    return _each(context, values or ())  # as Jinja's lazy filters take None


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


class _BoundedNamespace(Namespace):
    """A namespace that cannot contain another one, so that its size can be measured."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _size(list(dict(*args, **kwargs).values()))

    def __setitem__(self, name: str, value: Any) -> None:
        _size([value])
        super().__setitem__(name, value)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with fewer filters and methods; checks the size of every value that is created."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])
    concat = staticmethod(join)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        own: dict[str, Callable[..., Any]] = {"join": _join_filter, "replace": _replace, "format": _format_filter}
        own |= {"indent": _indent_filter, "title": _title_filter, "tojson": _tojson_filter}
        own |= {"#charge": _charge, "#each": _each, "#each_if_any": _each_if_any, "#join": join}
        self.filters = {name: FILTERS[name] for name in _FILTERS.split()} | own
        self.globals["namespace"] = _BoundedNamespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        del self.globals["lipsum"]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STRING_METHODS.split()
        return not isinstance(obj, int | float) and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_format(left, right, "%")
        elif operator == "*":
            for factor, value in ((left, right), (right, left)):
                if isinstance(factor, int) and isinstance(value, str | list | tuple):
                    _limit(factor * _size(value))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _size(1 << min(left.bit_length() * max(right, 0), _BITS))  # as many bits as the power, up to the limit
        return _charge(context, super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        context["#budget"].tick()
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        # Jinja adds the variables of a loop and of a block, which only functions with a context get.
        given = {key: value for key, value in kwargs.items() if key not in ("_loop_vars", "_block_vars")}
        if isinstance(owner, str) and name in ("join", "replace"):
            return _charge(context, join(args[0], owner) if name == "join" else _replace(owner, *args, **given))
        if isinstance(owner, str) and name.startswith("format"):
            _check_format(owner, [args, given], "{")
        return _charge(context, super().call(context, obj, *args, **kwargs))


class Guards(NodeTransformer):
    """Rewrites a template so that loops check the time and each new value is counted."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter(node.iter, "#each")
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.name in _LAZY_FILTERS and node.node is not None:
            node.node = _filter(node.node, "#each_if_any")
        return _filter(node, "#charge")

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(_filter(nodes.List(node.nodes), "#join"), "#charge")

    def visit_List(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        is_target = isinstance(node, nodes.Tuple) and node.ctx == "store"
        return node if is_target else _filter(node, "#charge")

    visit_Dict = visit_Tuple = visit_List


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


class SandboxedTemplate:
    """A compiled template of the sandbox."""

    def __init__(self, source: str) -> None:
        environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
        tree = Guards().visit(environment.parse(source))
        tree.set_environment(environment)
        self._template = environment.from_string(tree)

    def render(self, values: dict[str, Any]) -> str:
        return join(self._template.generate({**values, "#budget": Budget()}))
