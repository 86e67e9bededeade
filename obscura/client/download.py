"""Downloads that resume by Range and end with a SHA-256 check."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import httpx

from obscura.client.transport import RETRIES_MAX, Transport, backoff_seconds
from obscura.errors import ApiError, ConnectionFailed, DownloadCorrupt
from obscura.stopping import go_on


def download(
    transport: Transport,
    url: str,
    target: Path,
    sha256: str | None,
    total_bytes: int | None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Path:
    """Fetch `url` into `target`, going on from `<target>.part` when there is one, and check its SHA-256.

    Raises:
        ApiError: The service refused.
        ConnectionFailed: The connection broke more often than the retries allow without any progress.
        DownloadCorrupt: The bytes do not match; the partial file is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _fetch(transport, url, part, sha256, total_bytes, on_bytes)
            break
        except httpx.TransportError as error:
            failures = 0 if part.exists() and part.stat().st_size > before else failures + 1
            if failures >= RETRIES_MAX:
                raise ConnectionFailed(
                    transport.base_url, f"The download from {transport.base_url} broke: {error}"
                ) from error
            transport.sleep(backoff_seconds(failures))
        except ApiError as error:
            if error.status != 416 or before == 0:
                raise
            part.unlink()  # longer than the content: a leftover of something else
    with part.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 is not None and actual != sha256:
        part.unlink()
        raise DownloadCorrupt(f"{target.name} has SHA-256 {actual}, the service recorded {sha256}.")
    os.replace(part, target)
    return target


def _fetch(
    transport: Transport,
    url: str,
    part: Path,
    sha256: str | None,
    total_bytes: int | None,
    on_bytes: Callable[[int, int], None] | None,
) -> None:
    offset = part.stat().st_size if part.exists() else 0
    if total_bytes is not None and offset == total_bytes:
        return
    headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
    if offset and sha256 is not None:
        headers |= {"Range": f"bytes={offset}-", "If-Range": f'"{sha256}"'}
    with transport.stream(url, headers) as response:
        resumed = response.status_code == 206
        done = offset if resumed else 0
        with part.open("ab" if resumed else "wb") as file:
            for chunk in response.iter_bytes():
                go_on()
                file.write(chunk)
                done += len(chunk)
                if on_bytes is not None:
                    on_bytes(done, total_bytes or done)
