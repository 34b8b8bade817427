"""Run an unmodified script with tiny shapes beside those that its modules know: `with_shapes.py SCRIPT ARGS`."""

import importlib
import json
import os
import runpy
import sys

for name, shapes in json.loads(os.environ["TINY_SHAPES"]).items():
    importlib.import_module(name).transformer_configs.update(shapes)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
