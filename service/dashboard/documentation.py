"""The documentation site at `/docs`, built by `make docs`. It is public, and loads nothing from other sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi.staticfiles import StaticFiles
from starlette.responses import Response

import service
from service.dashboard.pages import CONTENT_POLICY, HEADERS

SITE = Path(service.__file__).parent / "site"
HASHES_FILE = "script-hashes.txt"  # of the inline scripts, written by the build


class Documentation(StaticFiles):
    """Serves the site if it was built; returns 404 for every other path."""

    def __init__(self, site: Path = SITE) -> None:
        super().__init__(directory=site, html=True, check_dir=False)
        hashes = site / HASHES_FILE
        scripts = hashes.read_text("ascii").split() if hashes.is_file() else []
        allowed = " ".join(["script-src 'self'", *(f"'{each}'" for each in scripts)])
        policy = CONTENT_POLICY.replace("script-src 'self'", allowed)
        policy = f"{policy}; font-src 'self'; worker-src 'self'"
        # Browsers cache the public pages, and revalidate them by ETag.
        self._headers = HEADERS | {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}

    async def check_config(self) -> None:
        """Accept a missing folder: then every page is missing."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(self._headers)
        return response
