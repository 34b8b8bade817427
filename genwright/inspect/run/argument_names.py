"""A call's arguments by the names of their parameters, however the script passes them."""

import inspect
import weakref
from typing import Any


class ArgumentNames:
    """Binds arguments to signatures, each of which is read once."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, dict[bool, inspect.Signature | None]] = weakref.WeakKeyDictionary()

    def named(self, target: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional arguments under their names where they could have been passed so; as they are if it fails."""
        if not args:
            return [], kwargs
        signature = self._signature(target)
        try:
            bound = signature.bind(*args, **kwargs) if signature is not None else None
        except TypeError:
            bound = None
        if signature is None or bound is None:
            return list(args), kwargs
        kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
        if any(kinds[name] is inspect.Parameter.VAR_POSITIONAL for name in bound.arguments):
            return list(args), kwargs  # what stands in front of `*rest` has no name
        positional, named = [], {}
        for name, value in bound.arguments.items():
            if kinds[name] is inspect.Parameter.POSITIONAL_ONLY:
                positional.append(value)
            elif kinds[name] is inspect.Parameter.VAR_KEYWORD:
                named.update(value)
            else:
                named[name] = value
        return positional, named

    def _signature(self, target: Any) -> inspect.Signature | None:
        function, is_bound = getattr(target, "__func__", target), hasattr(target, "__self__")
        try:
            held = self._known.setdefault(function, {})
        except TypeError:  # cannot be referred to weakly
            held = {}
        if is_bound not in held:
            held[is_bound] = _read(target)
        return held[is_bound]


def _read(target: Any) -> inspect.Signature | None:
    try:
        signature = inspect.signature(target)
        kinds = {p.kind for p in signature.parameters.values()}
        forward = getattr(getattr(target, "__self__", target), "forward", None)
        # A torch module takes anything and hands it to `forward`.
        if kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} and callable(forward):
            return inspect.signature(forward)
        return signature
    except (TypeError, ValueError):
        return None
