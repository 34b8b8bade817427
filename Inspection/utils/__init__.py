"""`from Inspection.utils.path_manager import RESOURCES_PATH`."""
