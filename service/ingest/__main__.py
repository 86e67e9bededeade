"""The process that reads an upload: `python -m service.ingest`, one request on standard input.

It answers with one line on standard output: `ok`, or the value of a fault. Its exit status is 0 in both cases; anything
else means that it was stopped by a limit.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from io import BufferedReader
from typing import BinaryIO

from service.ingest.array_files import QUARANTINE
from service.ingest.faults import Fault, Refused
from service.ingest.idx import ingest_idx
from service.ingest.limits import confine
from service.ingest.npz import ingest_npz
from service.ingest.picture_folders import ingest_picture_folders
from service.ingest.request import IngestRequest
from service.sealing import CHUNK_BYTES, SealedReader

READERS = {"zip": ingest_picture_folders, "npz": ingest_npz, "idx": ingest_idx}


def answer(request: IngestRequest, open_source: Callable[[IngestRequest], BinaryIO]) -> str:
    """Read the upload into `request.target` and return the line that the parent gets."""
    try:
        with open_source(request) as file:
            READERS[request.format](file, request)
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


def main() -> None:
    """Read the request, confine this process, then open the upload."""
    warnings.simplefilter("ignore")  # their texts quote what was read
    request = IngestRequest.from_json(sys.stdin.read())
    confine(request.limits)
    sys.stdout.write(answer(request, unsealed) + "\n")


if __name__ == "__main__":
    main()
