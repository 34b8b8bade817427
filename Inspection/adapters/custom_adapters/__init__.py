"""`from Inspection.adapters.custom_adapters.NAME import *`, for every NAME that has a manifest."""

import sys

from genwright.inspect.run.adapters import AdapterFinder

sys.meta_path.append(AdapterFinder())
