"""Who may write an entry that nobody has written yet, decided among machines that share nothing but a bucket.

Not every S3 server can write an object on the condition that there is none (OpenStack Swift cannot), so whoever wants
to puts a claim beside it and lists the claims. Who finds no other goes on, and keeps its own until the entry stands;
who finds another withdraws and tries again. Of two, one has listed after the other's claim stood, and servers list
what was written before, so two never go on. A claim that a crash has left counts for a while, longer than any request
of its owner may take.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.storage.interface import StorageUnavailable
from service.storage.s3.bucket import CONNECT_SECONDS, PATIENCE_SECONDS, READ_SECONDS, Bucket
from service.storage.s3.entries import new_id

_CLAIMS = "claims/"
_REQUEST_SECONDS = PATIENCE_SECONDS + CONNECT_SECONDS + READ_SECONDS
CLAIM_SECONDS = 2 * _REQUEST_SECONDS
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 3.0


@contextmanager
def alone(bucket: Bucket, key: str, over: Callable[[], bool]) -> Iterator[bool]:
    """Yield True when nobody else is about to write under a key; False once it is over, as somebody has.

    Args:
        over: tells whether an entry stands.

    Raises:
        StorageUnavailable: others have been about to for longer than a claim of theirs can last.
    """
    until, pause = time.monotonic() + 2 * CLAIM_SECONDS, _PAUSE_SECONDS
    while not over():
        beside = f"{_CLAIMS}{key}/"
        mine = beside + new_id()
        began = time.monotonic()
        bucket.put(mine, b"")
        claims = [listed for listed in bucket.list(_CLAIMS) if listed.name != mine]
        left = {listed.name for listed in claims if listed.seconds > CLAIM_SECONDS}
        for name in left:  # of whatever key: nobody else would
            bucket.delete(name)
        others = {listed.name for listed in claims if listed.name.startswith(beside)} - left
        # Once more, after the claim stood. What follows is one request: a process that was stopped for long goes back.
        if not others and not over() and time.monotonic() - began < CLAIM_SECONDS - _REQUEST_SECONDS:
            yield True
            bucket.delete(mine)  # after an error it stays: the request may still arrive
            return
        bucket.delete(mine)
        if time.monotonic() > until:
            raise StorageUnavailable("Others publish under the same identifier and do not end.", why="busy")
        time.sleep(random.uniform(0, pause))
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)
    yield False
