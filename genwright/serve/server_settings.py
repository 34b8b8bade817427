"""ServerSettings: where the server listens, who may use it and how much; imports no torch."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from genwright.arguments import check_settings, setting, short
from genwright.errors import UserError

MEGABYTE = 1_000_000
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?")  # compared with what browsers send


@dataclass(frozen=True)
class ServerSettings:
    """The settings of the server, each with the help text of its flag."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for every network.")
    port: int = setting(8000, "Port to listen on; 0 chooses a free one.", between=(0, 65535))
    model_name: tuple[str, ...] = setting((), "Name of the model for clients; may be repeated. Default: MODEL's.")
    images: str | None = setting(None, "Image model to serve beside it, such as emoji.")
    api_key: tuple[str, ...] = setting((), "Key that clients must send; may be repeated.")
    api_key_file: str | None = setting(None, "File with one key per line.")
    cors: tuple[str, ...] = setting((), "Origin that browsers may call from, or *; may be repeated. Default: none.")
    tls_cert: str | None = setting(None, "Certificate file, for https.")
    tls_key: str | None = setting(None, "Private key file, for https.")
    max_body: float = setting(8.0, "Megabytes that a request may have.", between=(0.001, 10_000.0))
    max_prompt: int | None = setting(None, "Tokens that a prompt may have; default: the context.", between=(1, 1 << 30))
    max_tokens: int | None = setting(
        None, "Tokens that an answer may have; default: the rest of the context.", between=(1, 1 << 30)
    )
    timeout: float = setting(600.0, "Seconds that a request may take.", between=(0.1, 1e6))
    max_queue: int = setting(256, "Sequences that may wait beside those that run.", between=(0, 1 << 20))
    requests_per_minute: int | None = setting(
        None, "Requests per minute of each key, or of each address without keys.", between=(1, 1 << 20)
    )
    shutdown_timeout: float = setting(
        30.0, "Seconds for running answers to end on SIGTERM or Ctrl-C.", between=(0.0, 1e6)
    )
    log_file: str | None = setting(None, "File for one JSON line per request; default: standard output.")
    log_prompts: bool = setting(False, "Write requests' bodies into the log.")

    def __post_init__(self) -> None:
        check_settings(self)
        if not all(name.strip() for name in self.model_name):
            raise UserError("model_name must be a text that is not empty.")
        for origin in self.cors:
            if origin not in ("*", "null") and not ORIGIN.fullmatch(origin):
                raise UserError(
                    "cors must be * or an origin as browsers send it, such as null, https://example.org or "
                    f"http://localhost:3000, not {short(origin)}."
                )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UserError("--tls-cert FILE and --tls-key FILE must be given together.")

    def read_keys(self) -> frozenset[str]:
        """The keys that clients may send; none if there is no key to send."""
        keys = set(self.api_key)
        if self.api_key_file is not None:
            try:
                lines = Path(os.path.expanduser(self.api_key_file)).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise UserError(f"The key file {self.api_key_file} cannot be read: {reason}.") from None
            found = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
            if not found:
                raise UserError(f"The key file {self.api_key_file} holds no key.")
            keys |= found
        if any(not key.isascii() or not key.isprintable() or not key for key in keys):
            raise UserError("A key must be printable ASCII text that is not empty.")
        return frozenset(keys)

    @property
    def body_bytes(self) -> int:
        return int(self.max_body * MEGABYTE)
