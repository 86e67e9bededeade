"""The anchor: a copy of the newest checkpoint in another place, a folder or an address, to compare a database with that
was restored or rewritten together with everything beside it.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from obscura.private_files import replace_file
from service.audit.checkpoints import CHECKPOINT_FILE, Signed, signed_checkpoint
from service.audit.signing import DOCUMENT_BYTES_MAX, SignatureRefused, bytes_of, document_in
from service.logs import get_logger

SECONDS_MAX = 5.0  # without a byte of an answer
WHOLE_SECONDS_MAX = 15.0  # of a request: nothing waits for an anchor for long
_NOTHING_THERE = (404, 410)
Done = TypeVar("Done")


class _Away(Exception):
    """The anchor cannot be asked now."""


def read_anchor(anchor: str, trusted: Mapping[str, bytes]) -> Signed | None:
    """Return the checkpoint of the anchor; None where there is none yet, or it cannot be asked now, which is logged.

    Args:
        anchor: a folder, or an https or http address; empty for no anchor.
        trusted: public keys by fingerprint.

    Raises:
        SignatureRefused: it cannot be understood, or no trusted key has signed it.
    """
    try:
        content = _in_time(lambda: _fetch(anchor)) if anchor else None
    except _Away as error:
        get_logger(__name__).warning("anchor_away", error=str(error))
        return None
    return None if content is None else signed_checkpoint(document_in(content), trusted)


def push_anchor(anchor: str, document: Mapping[str, Any]) -> bool:
    """Bring a checkpoint to the anchor unless one is there that is as new, or cannot be read: that may be evidence.

    Returns:
        Whether it was brought. What could not be brought is logged; the next checkpoint is brought again.
    """
    try:
        before = _in_time(lambda: _fetch(anchor))
        if before is not None and _sequence(before) >= int(document["statement"]["sequence"]):
            return False
        _in_time(lambda: _store(anchor, bytes_of(document)))
    except (_Away, SignatureRefused) as error:
        get_logger(__name__).warning("anchor_not_pushed", error=str(error) or type(error).__name__)
        return False
    return True


def _in_time(act: Callable[[], Done]) -> Done:
    """Do what may never end: a folder on another machine's disk hangs when that is gone, and an answer may trickle.

    Raises:
        _Away: it has not ended in time, and is left to itself.
    """
    done: Future[Done] = Future()

    def run() -> None:
        try:
            done.set_result(act())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="obscura-anchor", daemon=True).start()
    try:
        return done.result(WHOLE_SECONDS_MAX)
    except TimeoutError:
        raise _Away("it does not end") from None


def _sequence(content: bytes) -> int:
    try:
        return int(document_in(content)["statement"]["sequence"])
    except (KeyError, TypeError, ValueError):
        raise SignatureRefused("It is not a checkpoint.") from None


def _fetch(anchor: str) -> bytes | None:
    try:
        if urlsplit(anchor).scheme not in ("http", "https"):
            with open(Path(anchor) / CHECKPOINT_FILE, "rb") as file:
                return file.read(DOCUMENT_BYTES_MAX + 1)
        with urllib.request.urlopen(anchor, timeout=SECONDS_MAX) as answer:
            content = bytes(answer.read(DOCUMENT_BYTES_MAX + 1))
            if answer.length and len(content) <= DOCUMENT_BYTES_MAX:
                raise _Away("the answer was cut short")  # which says nothing of what is there
            return content
    except FileNotFoundError:
        return None
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _NOTHING_THERE:
            return None
        raise _Away(f"status {error.code}") from None
    except (OSError, ValueError, HTTPException) as error:
        raise _Away(type(error).__name__) from None


def _store(anchor: str, content: bytes) -> None:
    try:
        if urlsplit(anchor).scheme not in ("http", "https"):
            replace_file(Path(anchor) / CHECKPOINT_FILE, content)
            return
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(anchor, data=content, method="PUT", headers=kind)
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        raise _Away(f"status {error.code}") from None
    except (OSError, ValueError, HTTPException) as error:
        raise _Away(type(error).__name__) from None
