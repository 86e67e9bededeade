"""The limits that an upload is held to, and the process that reads it."""

from __future__ import annotations

import resource
from dataclasses import dataclass

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """Bounds on one upload. All are public settings, so messages may name them.

    The compression ratio is judged above a slack: small files of flat colour compress very well and harm nobody.
    Real pictures stay far below 100; deflate can reach 1,032.
    """

    upload_bytes_max: int = 2048 * MEBIBYTE
    records_max: int = 2_000_000
    entries_max: int = 2_010_000
    entry_bytes_max: int = 32 * MEBIBYTE
    expanded_bytes_max: int = 16_384 * MEBIBYTE
    stored_bytes_max: int = 16_384 * MEBIBYTE
    ratio_max: int = 100
    entry_slack_bytes: int = MEBIBYTE // 4
    array_slack_bytes: int = 16 * MEBIBYTE
    name_bytes_max: int = 512
    subject_characters_max: int = 64
    pixels_max: int = 2048 * 2048
    memory_bytes_max: int = 3072 * MEBIBYTE
    processor_seconds_max: int = 900
    wall_seconds_max: int = 1800
    open_files_max: int = 64


def confine(limits: IngestLimits) -> None:
    """Hold the current process to the limits for the rest of its life (Unix): memory, processor time, file size, files.

    Core dumps are switched off, because a dump would hold decoded private images.
    """
    bounds = {
        resource.RLIMIT_AS: limits.memory_bytes_max,
        resource.RLIMIT_CPU: limits.processor_seconds_max,
        resource.RLIMIT_FSIZE: limits.stored_bytes_max + MEBIBYTE,
        resource.RLIMIT_NOFILE: limits.open_files_max,
        resource.RLIMIT_CORE: 0,
    }
    for kind, bound in bounds.items():
        hard = resource.getrlimit(kind)[1]
        value = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (value, value))
