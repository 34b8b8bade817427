"""The scenario's limit on calls, counted over all processes of a run."""

import os
import sys

from genwright.inspect.records.records import RecordFolder

EXIT_CODE = 75


class CallLimit:
    """Ends the process that makes one call too many; the file `limited.count` tells the run's record."""

    def __init__(self, folder: RecordFolder) -> None:
        self._folder = folder
        self._reached = False
        self.most: float | None = None

    def count(self) -> None:
        """Count one call."""
        if self.most is None or self._folder.next_number("limited") <= self.most:
            return
        if self._reached:  # the script caught the first exit
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(EXIT_CODE)
        self._reached = True
        print(f"genwright: the scenario's limit of {self.most:g} calls is reached; the run ends here.", file=sys.stderr)
        raise SystemExit(EXIT_CODE)
