"""The page at `/`: its files joined into one document, and a policy that lets only its own scripts and styles run."""

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from genwright.serve.service import Service

FOLDER = Path(__file__).parent / "page"
STYLE = re.compile(r'<link rel="stylesheet" href="(\w+\.css)">')
SCRIPT = re.compile(r'<script src="(\w+\.js)"></script>')


class Page:
    """Answers with the page."""

    def __init__(self) -> None:
        text = (FOLDER / "page.html").read_text(encoding="utf-8")
        text, styles = _join(text, STYLE, "style")
        text, scripts = _join(text, SCRIPT, "script")
        self.content = text.encode()
        # Trusted types forbid turning any text into HTML or into a script.
        self.policy = (
            f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        )

    async def answer(self, service: Service, request: Request, given: dict[str, Any]) -> Response:
        headers = {"content-security-policy": self.policy, "cache-control": "no-cache"}
        return Response(self.content, headers=headers, media_type="text/html")


def _join(text: str, reference: re.Pattern[str], tag: str) -> tuple[str, str]:
    """The text with files in place of references to them, and their hashes as a policy's sources."""
    hashes = []

    def inline(match: re.Match[str]) -> str:
        content = (FOLDER / match[1]).read_text(encoding="utf-8")
        hashes.append(f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'")
        return f"<{tag}>{content}</{tag}>"

    return reference.sub(inline, text), " ".join(hashes)
