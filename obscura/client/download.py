"""Downloads that resume by Range and end with a SHA-256 check."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx

from obscura.client.transport import RETRIES_MAX, RETRY_STATUSES, Transport, backoff_seconds
from obscura.errors import ApiError, ConnectionFailed, DownloadCorrupt, NoRoom
from obscura.stopping import go_on

DOWNLOAD_BYTES_MAX = 8 * 2**30  # of a file whose size was not announced


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
        DownloadCorrupt: The bytes do not match, or exceed the announced size; the partial file is removed.
        NoRoom: The disk has less room than the announced size needs.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(target.parent).free
    if total_bytes is not None and total_bytes > free_bytes:
        raise NoRoom(
            f"{target.name} has {total_bytes:,} bytes, and {target.parent} has room for {free_bytes:,}. Free some "
            "space or choose another place."
        )
    part = target.with_name(target.name + ".part")
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _fetch(transport, url, part, sha256, total_bytes, on_bytes)
            break
        except httpx.RequestError as error:
            failures = 0 if part.exists() and part.stat().st_size > before else failures + 1
            if failures >= RETRIES_MAX:
                raise ConnectionFailed(
                    transport.base_url, f"The download from {transport.route} broke: {error}"
                ) from error
            transport.sleep(backoff_seconds(failures))
        except DownloadCorrupt:
            part.unlink()
            raise
        except ApiError as error:
            if error.status == 416 and before > 0:
                part.unlink()  # longer than the content: a leftover of something else
                continue
            failures += 1
            if error.status not in RETRY_STATUSES or failures >= RETRIES_MAX:
                raise
            transport.sleep(backoff_seconds(failures))
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
        bytes_max = DOWNLOAD_BYTES_MAX if total_bytes is None else total_bytes
        with part.open("ab" if resumed else "wb") as file:
            for chunk in response.iter_bytes():
                go_on()
                done += len(chunk)
                if done > bytes_max:
                    raise DownloadCorrupt(f"{part.stem} is larger than the {bytes_max:,} bytes that it may have.")
                file.write(chunk)
                if on_bytes is not None:
                    on_bytes(done, total_bytes or done)
