"""The import names that generated scripts use; importing them makes no folder."""

from Inspection.utils.path_manager import ENV_BASE as ENV_BASE
