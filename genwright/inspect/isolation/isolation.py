"""Isolation: a command in a process, namespaces and limits of its own, with everything that it writes in the record."""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGXCPU, Signals
from typing import Any

import psutil

from genwright.errors import UserError
from genwright.home import cache_folder
from genwright.inspect.isolation.overlay import home_folders, link_files, outside, plan_mounts, remove_scaffold
from genwright.inspect.isolation.sandbox_cgroup import ControlGroup
from genwright.inspect.isolation.sandbox_watch import Watch
from genwright.inspect.isolation.written_files import copy_changed, stamps, written_files
from genwright.inspect.records.secrets import is_secret

# What a run sees of the environment, besides what its scenario gives it.
ALLOWED = {"PATH", "LANG", "LANGUAGE", "TZ", "TERM", "USER", "LOGNAME", "LD_LIBRARY_PATH", "SSL_CERT_FILE"}
ALLOWED_PREFIXES = ("LC_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "CUDA_", "NVIDIA_", "TORCH_", "TRITON_", "GENWRIGHT_")
PROCESSES = 1000  # of a run whose scenario does not say
THREADS = max(16, 2 * (os.cpu_count() or 1))  # of each process, where their number is limited


@dataclass(frozen=True)
class Limits:
    """What a run may use; None is no limit. `calls` is counted by the executor."""

    seconds: float | None = None
    cpu_seconds: float | None = None
    memory_gb: float | None = None
    output_mb: float | None = None
    processes: int | None = None
    calls: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise UserError(f"The limit {each.name} must be a positive number, not {value!r}.")

    @classmethod
    def of_scenario(cls, given: Mapping[str, Any], folder: Path) -> "Limits":
        """A scenario's limits, and for those that it does not give, what keeps the machine usable."""
        memory, room = psutil.virtual_memory().available, shutil.disk_usage(folder).free
        usual = {"memory_gb": 0.9 * memory / 1e9, "output_mb": max(1, min(10_000, room / 2e6)), "processes": PROCESSES}
        return cls(**usual | dict(given))

    def given(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Isolation:
    """How a run is kept apart; `environment` is added to what the allow-list lets through."""

    limits: Limits = field(default_factory=Limits)
    network: bool = False
    unsafe: bool = False  # run also where something cannot be enforced
    environment: Mapping[str, str] | None = None
    readable: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a run ended: `status` is ended, failed, limit, killed or refused; `message` says why in one sentence."""

    status: str
    exit_code: int | None = None
    limit: str | None = None
    seconds: float = 0.0
    peak_memory: int = 0
    unenforced: list[str] = field(default_factory=list)
    written: list[dict[str, Any]] = field(default_factory=list)
    message: str = ""


def run_isolated(
    argv: list[str],
    folder: Path,
    script_folder: Path,
    project: Path,
    isolation: Isolation,
    *,
    echo: bool = False,
) -> Ended:
    """Run a command in `folder/work`; it prints to output.txt and error.txt, and with `echo` to the terminal too."""
    folder, script_folder, project = folder.resolve(), script_folder.resolve(), project.resolve()
    for path in (script_folder, project, *isolation.readable):
        if not path.exists():
            raise UserError(f"There is no {path} that a run could be shown; pass a path that exists.")
    (folder / "work").mkdir(parents=True, exist_ok=True)
    exposed = [home for home in home_folders() if any(home.is_relative_to(path) for path in (project, script_folder))]
    if exposed and not isolation.unsafe:
        return Ended(
            "refused",
            unenforced=["home"],
            message=f"{project} contains the home folder {exposed[0]}, which a run may not read; move the script to a "
            "folder of its own, or pass --unsafe.",
        )
    return _Run(argv, folder, script_folder, project, isolation, echo, ["home"] if exposed else []).run()


@dataclass(frozen=True)
class _Run:
    argv: list[str]
    folder: Path
    script_folder: Path
    project: Path
    isolation: Isolation
    echo: bool
    unenforced: list[str]

    def run(self) -> Ended:
        reason = "only Linux has them"
        if sys.platform == "linux":
            watch = self._in_namespaces()
            if not watch.refused:
                return self._ended(watch, self.unenforced)
            reason = watch.refused
        lost = [*([] if self.isolation.network else ["network"]), "home", "project"]
        if sys.platform != "linux":
            lost.append("processes that leave their parent")
        if not self.isolation.unsafe:
            message = f"This system refuses namespaces to a run ({reason}), so that these cannot be protected from it: "
            return Ended("refused", unenforced=lost, message=f"{message}{', '.join(lost)}. Pass --unsafe to run it.")
        return self._ended(self._without_namespaces(), lost)

    def _in_namespaces(self) -> Watch:
        given = self.isolation
        mounts = plan_mounts(self.folder, self.script_folder, self.project, given.readable, given.network)
        homes = [*map(str, home_folders()), "/tmp"]
        try:
            return self._watch(
                namespaces=True,
                mounts=[asdict(each) for each in mounts],
                environment=self._environment(homes[0], "/tmp"),
            )
        finally:
            remove_scaffold(self.folder, mounts, self.script_folder)

    def _without_namespaces(self) -> Watch:
        """Links instead of layers, a home and a temporary folder by name only, and a search for what was written."""
        work, home = self.folder / "work", outside(self.folder, [*home_folders(), Path("/tmp")][0])
        home.mkdir(parents=True, exist_ok=True)
        link_files(self.script_folder, work)
        watched = dict.fromkeys((self.project, self.script_folder))
        before = stamps(watched, self.folder)
        # The names of sockets must be short, so that this folder cannot be in the record from the start.
        temporary = Path(tempfile.mkdtemp(prefix="run-"))
        try:
            return self._watch(
                namespaces=False,
                environment=self._environment(str(home), str(temporary)),
            )
        finally:
            shutil.copytree(temporary, outside(self.folder, Path("/tmp")), symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(temporary)
            copy_changed(before, stamps(watched, self.folder), self.folder)
            remove_scaffold(self.folder, [], self.script_folder)

    def _watch(self, **plan: Any) -> Watch:
        limits = self.isolation.limits
        memory = int(limits.memory_gb * 1e9) if limits.memory_gb else None
        threads = int(limits.processes) * THREADS if limits.processes else None
        plan |= {
            "argv": self.argv,
            "script_folder": str(self.script_folder),
            "work": str(self.folder / "work"),
            "network": self.isolation.network,
            "shm_bytes": memory or psutil.virtual_memory().total // 2,
            "cpu_seconds": limits.cpu_seconds,
            "threads": threads,
            "others": _threads_of_user() if threads else 0,
        }
        group = ControlGroup(memory, threads)
        watch = Watch(plan, limits.given(), self.folder, group, self.echo)
        try:
            watch.run()
        finally:
            group.remove()
        return watch

    def _environment(self, home: str, temporary: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if (name in ALLOWED or name.startswith(ALLOWED_PREFIXES)) and not is_secret(name)
        }
        if "PYTHONPATH" in kept:  # the working directory is another one
            kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, kept["PYTHONPATH"].split(os.pathsep)))
        own = {"HOME": home, "TMPDIR": temporary, "GENWRIGHT_HOME": str(cache_folder().absolute())}
        # A killed run leaves what it had printed, and imports leave no files behind.
        python = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return kept | python | own | dict(self.isolation.environment or {})

    def _ended(self, watch: Watch, unenforced: list[str]) -> Ended:
        limit, code = watch.limit, watch.exit_code
        if limit is None and code == -SIGXCPU:
            limit = "cpu_seconds"
        if limit is not None:
            status, message = (
                "limit",
                f"The run was ended at its limit {limit} = {getattr(self.isolation.limits, limit):g}.",
            )
        elif watch.not_started:
            status, message = "refused", f"The command could not be started ({watch.not_started})."
        elif code is None or -code in (SIGKILL, SIGTERM):
            status, message = "killed", f"The run was killed{f' by {Signals(-code).name}' if code else ''}."
        elif code:
            end = f"exit code {code}" if code > 0 else Signals(-code).name
            status, message = "failed", f"The run ended with {end}."
        else:
            status, message = "ended", ""
        written = written_files(self.folder)
        return Ended(status, code, limit, watch.seconds, watch.peak_memory, unenforced, written, message)


def _threads_of_user() -> int:
    """The threads of this user, which the system's limit counts too."""
    user, count = os.getuid(), 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        if process.info["uids"] and process.info["uids"].real == user:
            count += process.info["num_threads"] or 0
    return count
