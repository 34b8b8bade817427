"""The folder of sample media under the name that generated scripts import it by; made on first use."""

from genwright.inspect.media.samples import sample_folder

RESOURCES_PATH = f"{sample_folder()}/"
