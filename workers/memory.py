"""How a process that trains keeps its memory: what one step frees, the next step uses.

The allocator of glibc gives large blocks back to the operating system at once, and gets them again, page by page and
zeroed, a moment later. A step of training frees and allocates the same blocks every time, so on a CPU that took up to
half of a step (docs/benchmarks/dpsgd_throughput.md).
"""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_MMAP_THRESHOLD_MAX = 32 * 2**20  # bytes; glibc takes no more
_NEVER_TRIM = 2**31 - 1  # bytes


def keep_freed_memory() -> None:
    """Keep what is freed for what is allocated next, in blocks up to 32 MiB; no effect with another allocator."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _MMAP_THRESHOLD_MAX)
        mallopt(_TRIM_THRESHOLD, _NEVER_TRIM)
