"""The log: one JSON line per request, which never stops the server when it cannot be written."""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from genwright.errors import UserError


class AccessLog:
    """Writes one line per request to a file or to standard output."""

    def __init__(self, path: str | None):
        try:
            place = None if path is None else Path(os.path.expanduser(path))
            self._file: TextIO = sys.stdout if place is None else place.open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(f"The log file {path} cannot be written: {error.strerror}.") from None
        self._failed = False  # since the last line that was written

    def write(self, **entry: Any) -> None:
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry})
        try:
            print(line, file=self._file, flush=True)
            self._failed = False
        except (OSError, ValueError) as error:
            if not self._failed:
                print(f"genwright: The log cannot be written: {error}; requests go on.", file=sys.stderr)
            self._failed = True
