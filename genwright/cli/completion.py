"""Shell completion: the scripts of `genwright --show-completion`, and `--complete`, which they call."""

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from genwright.cli import VERBS
from genwright.errors import UserError

# Both call `genwright --complete WORDS`, which prints lines of word, tab and help; without lines, they offer files.
SCRIPTS = {
    "bash": """\
_genwright() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null | cut -f 1))
}
complete -o default -F _genwright genwright""",
    "zsh": """\
#compdef genwright
_genwright() {
    local line
    local -a found
    for line in "${(@f)$("${words[1]}" --complete "${(@)words[2,CURRENT]}" 2> /dev/null)}"; do
        [[ -n $line ]] && found+=("${line%%$'\\t'*}:${line#*$'\\t'}")
    done
    if (( $#found )); then _describe genwright found; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _genwright genwright""",
}


def app(arguments: list[str], prog_name: str) -> None:
    """Run `--show-completion [SHELL]`, by default for $SHELL, or `--complete WORDS`."""
    flag, *words = arguments
    if flag == "--complete":
        print(*complete(*words), sep="\n")
        return
    shell = words[0] if words else Path(os.environ.get("SHELL", "bash")).name
    if shell not in SCRIPTS:
        raise UserError(f"--show-completion takes {' or '.join(SCRIPTS)}, not {shell!r}.")
    print(SCRIPTS[shell])


def complete(*words: str) -> Iterator[str]:
    """Lines for the words that complete the last one."""
    *before, start = words or ("",)
    candidates = VERBS if not before else _candidates(*before) if before[0] in VERBS else {}
    for word, about in candidates.items():
        # Where flags may follow, files may too, so flags are offered only after a dash.
        if word.startswith(start) and word.startswith("-") == start.startswith("-"):
            yield f"{word}\t{about}"


def _candidates(verb: str, *words: str) -> dict[str, str]:
    """Subcommands and flags that may follow, with their help; none where a flag's value is expected."""
    from typer.main import get_command

    module = import_module(f"genwright.cli.{verb}")
    command: Any = get_command(getattr(module, "commands", module.app))
    subcommands = getattr(command, "commands", {})
    name = words[0] if words and words[0] in subcommands else getattr(module, "DEFAULT", "")
    options = [each for each in subcommands.get(name, command).params if each.param_type_name == "option"]
    if words and any(words[-1] in option.opts and not option.is_flag for option in options):
        return {}
    flags = {flag: option.help or "" for option in options for flag in (*option.opts, *option.secondary_opts)}
    first = {} if words else {name: each.get_short_help_str() for name, each in subcommands.items()}
    return first | flags | {"--help": "Show this command's options."}
