"""Spawned processes of a rewritten script run the rewritten file, too."""

import os
import sys
from typing import Any

from genwright.inspect.surroundings.import_hooks import after_import


def run_this_file_in_children(path: str) -> None:
    """Let spawned processes load this file: a rewritten script has its original's `__file__`, which they would load."""

    def act(module: Any) -> None:
        prepare = module.get_preparation_data

        def prepared(name: str) -> dict[str, Any]:
            data: dict[str, Any] = prepare(name)
            if "init_main_from_path" in data and getattr(sys.modules["__main__"], "__file__", None):
                data["init_main_from_path"] = path
            return data

        module.get_preparation_data = prepared

    if os.path.isfile(path):
        after_import({"multiprocessing.spawn": act})
