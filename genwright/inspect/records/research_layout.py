"""A run in the layout of the research system: `LABEL/NAME_DATE/N_FUNCTION/result_data.json`, for its readers."""

import contextlib
import json
import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from genwright.inspect.records.stored_runs import Call, StoredRun

_COPIED = 1 << 26  # bytes of a file that is copied


def write_research_layout(run: StoredRun) -> None:
    """Write each call of an interface with its seven fields, and the files that it wrote beside them."""
    started = datetime.fromisoformat(run.data["started"]).astimezone()
    top = run.path / run.data["label"] / f"{run.data['name']}_{started:%Y-%m-%d-%H-%M-%S}"
    for call in run.calls():
        if call.event in ("create", "run"):
            _write(call, top)


def _write(call: Call, top: Path) -> None:
    function = "create_interface_objects" if call.event == "create" else call.interface.rpartition(".")[2]
    folder = top / f"{call.number}_{function}"
    folder.mkdir(parents=True, exist_ok=True)
    written = [Path(f["path"]) for f in call.files if f["written"] and os.path.exists(f["path"])]
    failure = call.exception or {}
    data: dict[str, Any] = {
        "fuc_name": function,
        "is_success": call.status == "returned",
        "fail_reason": f"{failure['message']}\n{''.join(failure['traceback'])}" if failure else "",
        "is_file": bool(written),
        "file_path": str(written[0]) if written else "",
        "except_data": None,
        "interface_return": call.result,
        "process_time": call.seconds,
        "args": call.keywords | {str(i): a for i, a in enumerate(call.arguments)},
    }
    (folder / "result_data.json").write_text(json.dumps(data, ensure_ascii=False, indent=4), encoding="utf-8")
    for path in written:
        with contextlib.suppress(OSError):
            if path.is_file() and path.stat().st_size <= _COPIED:
                shutil.copyfile(path, folder / path.name)
