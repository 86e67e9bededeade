"""Exit statuses of the runner, shared with its supervisor."""

from __future__ import annotations

import enum


class ExitStatus(enum.IntEnum):
    """How the runner left. The database says what became of the job; this says why the process is gone."""

    ENDED = 0  # the job has ended: succeeded, failed or cancelled
    STALE = 3  # another attempt has taken over; nothing was written
    LOST = 4  # the database could not be reached, or another process of the training died; the attempt counts
    INTERRUPTED = 75  # told to stop, or its supervisor is gone: another attempt goes on (EX_TEMPFAIL)
