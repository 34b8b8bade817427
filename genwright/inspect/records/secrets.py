"""Secrets in environments, command lines and records: their values are replaced before anything is written."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

REDACTED = "[redacted]"
_ALWAYS = {"secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials", "apikey"}
_LAST = {"key", "token", "pat"}
# Names of vocabulary entries and of lookups, which are no secrets.
_ORDINARY = {"eos", "bos", "pad", "unk", "sep", "cls", "mask", "stop", "special", "new", "next", "image", "sort", "end"}


@lru_cache(4096)
def is_secret(name: str) -> bool:
    """Whether a variable or an option of this name holds a secret: HF_TOKEN, --api-key, dbPassword."""
    words = [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    if not words or words[-1] not in _LAST:
        return bool(set(words) & _ALWAYS)
    return not set(words) & _ORDINARY


def redacted_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the values of its secrets."""
    return {k: REDACTED if is_secret(k) else v for k, v in sorted(environment.items())}


def redacted_arguments(arguments: Iterable[str]) -> list[str]:
    """A command line without the values of its secrets: `--token X` and `--token=X`."""
    shown: list[str] = []
    hidden = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        option = name.startswith("-") and is_secret(name)
        shown.append(REDACTED if hidden and not argument.startswith("-") else argument)
        if option and equals:
            shown[-1] = f"{name}={REDACTED}"
        hidden = option and not equals
    return shown


def secret_values(environment: Mapping[str, str], arguments: list[str]) -> list[str]:
    """The values that no record may show, the longest first; short ones would be found in any text."""
    shown = redacted_arguments(arguments)
    given = [v for v, told in zip(arguments, shown, strict=True) if told == REDACTED]
    given += [v.partition("=")[2] for v, told in zip(arguments, shown, strict=True) if told.endswith(f"={REDACTED}")]
    held = {v for k, v in environment.items() if is_secret(k)} | set(given)
    return sorted((v for v in held if len(v) >= 6), key=len, reverse=True)


def without_secrets(data: Any, values: list[str]) -> Any:
    """JSON data with every secret value replaced, and what stands under a secret's name."""
    if isinstance(data, str):
        for value in values:
            data = data.replace(value, REDACTED)
        return data
    if data is None or isinstance(data, int | float):
        return data
    if isinstance(data, list):
        return [without_secrets(v, values) for v in data]
    if isinstance(data, dict):
        return {
            k: REDACTED if isinstance(v, str) and v and is_secret(str(k)) else without_secrets(v, values)
            for k, v in data.items()
        }
    return data
