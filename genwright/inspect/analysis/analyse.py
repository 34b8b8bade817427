"""Everything that is known about one script before anything of it runs."""

import ast
import re
from dataclasses import dataclass, replace
from pathlib import Path

from genwright.inspect.analysis.command_line import read_command_line
from genwright.inspect.analysis.console_scripts import console_command
from genwright.inspect.analysis.locate import locate, parse
from genwright.inspect.analysis.manifest import Manifest
from genwright.inspect.analysis.outputs import Output, find_outputs
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.resources import Resource, find_resources, placeholders
from genwright.inspect.analysis.sites import Location
from genwright.inspect.analysis.unattended import Blocker, Unattended, read_unattended
from genwright.inspect.rewrite.edits import Source


@dataclass(frozen=True)
class Analysis:
    """One script, understood."""

    script: Path
    text: Source
    tree: ast.Module
    repository: Repository
    location: Location
    unattended: Unattended
    outputs: list[Output]
    resources: list[Resource]

    @property
    def source(self) -> str:
        return self.text.text

    @property
    def package(self) -> str:
        """The package that relative imports start from; "" when there are none."""
        relative = any(isinstance(n, ast.ImportFrom) and n.level for n in self.location.flow.nodes)
        return self.repository.package(self.script) if relative else ""

    def uses(self, name: str) -> bool:
        """Whether a name occurs anywhere in the script."""
        return bool(re.search(rf"\b{re.escape(name)}\b", self.source))


def analyse(source: str, script: Path, manifest: Manifest, repository: Repository) -> Analysis:
    """Parse, locate, and read command line, input, outputs and resources."""
    drafted = repository.located
    earlier = drafted[1] if drafted and drafted[0] == source else None
    tree = earlier.flow.tree if earlier else parse(source, script.name)
    texts = placeholders(tree)
    location = locate(tree, manifest, repository.module(script), repository.package(script), texts, earlier)
    repository.located = None  # it is as large as the script
    command_line = read_command_line(tree, location.flow, repository, script)
    unattended = read_unattended(tree, location, command_line)
    entry = console_command(repository, script, tree)
    if entry:
        blockers = [b for b in unattended.blockers if b.kind != "entry"] + [Blocker("entry", 0, entry)]
        unattended = replace(unattended, has_entry=False, entry=entry, blockers=blockers)
    return Analysis(
        script,
        Source(source),
        tree,
        repository,
        location,
        unattended,
        find_outputs(location.flow, command_line),
        find_resources(location, repository, script),
    )
