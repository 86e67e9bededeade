"""The process that reads an upload: `python -m service.ingest`, one request on standard input.

It answers with one line on standard output: `ok`, or the value of a fault. Its exit status is 0 in both cases; anything
else means that it was stopped by a limit.
"""

from __future__ import annotations

import resource
import sys
import warnings
from collections.abc import Callable
from io import BufferedReader
from typing import BinaryIO

from obscura.wire.faults import Fault, Refused
from service.ingest.array_files import QUARANTINE
from service.ingest.formats import Ingest, format_named
from service.ingest.request import MEBIBYTE, IngestLimits, IngestRequest
from service.sealing import CHUNK_BYTES, SealedReader


def answer(request: IngestRequest, ingest: Ingest, open_source: Callable[[IngestRequest], BinaryIO]) -> str:
    """Read the upload into `request.target` and return the line that the parent gets."""
    try:
        with open_source(request) as file:
            ingest(file, request)
    except Refused as refused:
        return refused.fault.value
    except MemoryError:
        return Fault.TOO_COSTLY.value
    except OSError:
        return Fault.STORAGE.value
    except Exception:
        # A trace would quote the upload. The operator can repeat the ingest by hand on the same file.
        return Fault.INTERNAL.value
    return "ok"


def unsealed(request: IngestRequest) -> BinaryIO:
    """Open the upload, which lies in quarantine sealed."""
    reader = SealedReader(request.source.open("rb"), request.source_key, QUARANTINE)
    return BufferedReader(reader, CHUNK_BYTES)


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


def main() -> None:
    """Read the request, load the code for its format, confine this process, and only then open the upload."""
    warnings.simplefilter("ignore")  # their texts quote what was read
    request = IngestRequest.from_json(sys.stdin.read())
    ingest = format_named(request.format).load()
    confine(request.limits)
    sys.stdout.write(answer(request, ingest, unsealed) + "\n")


if __name__ == "__main__":
    main()
