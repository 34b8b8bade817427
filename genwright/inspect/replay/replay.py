"""Replay mode: a run's recorded results in the place of its model."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from genwright.arguments import counted
from genwright.errors import UserError
from genwright.inspect.records.stored_runs import Call, StoredRun
from genwright.inspect.records.summary import summarise
from genwright.inspect.replay.recorded_results import hand_out, same_arguments


class Replay:
    """Hands out each recorded result once: to the call with the same arguments, or else in the order of the calls."""

    def __init__(self, run: StoredRun, class_of: Callable[[str], Any] = lambda name: None) -> None:
        self._run, self._class_of = run, class_of
        self._left: dict[tuple[str, str], list[Call]] = defaultdict(list)
        self._count: dict[tuple[str, str], int] = defaultdict(int)
        for call in run.calls():
            if call.event in ("create", "run"):
                self._left[call.event, call.interface].append(call)
                self._count[call.event, call.interface] += 1

    def answer(self, event: str, interface: str, args: tuple, kwargs: dict[str, Any], target: Any = None) -> Any:
        """Give or raise what the recorded call did; a `create` gives an object of the class that it constructs."""
        left = self._left[event, interface]
        if not left:
            calls = counted(self._count[event, interface], "recorded call")
            raise UserError(
                f"{self._run.name} has {calls} of {interface}, and the script makes one more; record a new run."
            )
        same = self._same(left, args, kwargs) if len(left) > 1 else 0
        return hand_out(left.pop(same), self._class_of(interface) if event == "create" else None)

    @staticmethod
    def _same(left: list[Call], args: tuple, kwargs: dict[str, Any]) -> int:
        """Calls of threads and tasks may come in another order than the recorded ones."""
        arguments, keywords = [summarise(a) for a in args], {k: summarise(v) for k, v in kwargs.items()}
        return next((i for i, call in enumerate(left) if same_arguments(call, arguments, keywords)), 0)
