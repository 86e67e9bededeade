"""The confined process: read one request from standard input, and write `ok` or the value of a fault.

The exit status is 0 in both cases. Any other status means that a limit ended the process. The process can still use the
network.
"""

from __future__ import annotations

import resource
import sys
import warnings
from io import BufferedReader

from obscura.wire.uploads import Fault, Refused
from service.ingest.array_files import QUARANTINE
from service.ingest.request import FORMATS, MEBIBYTE, Ingest, IngestLimits, IngestRequest
from service.sealing import CHUNK_BYTES, SealedReader


def answer(request: IngestRequest, ingest: Ingest) -> str:
    """Read the sealed upload into `request.target`, and return the answer."""
    try:
        sealed = SealedReader(request.source.open("rb"), request.source_key, QUARANTINE)
        with BufferedReader(sealed, CHUNK_BYTES) as file:
            ingest(file, request)
    except Refused as refused:
        return refused.fault.value
    except MemoryError:
        return Fault.TOO_COSTLY.value
    except OSError:
        return Fault.STORAGE.value
    except Exception:  # a traceback would quote the upload
        return Fault.INTERNAL.value
    return "ok"


def confine(limits: IngestLimits) -> None:
    """Limit this process's memory, CPU time, file size and open files, and disable core dumps."""
    bounds = {
        resource.RLIMIT_AS: limits.memory_bytes_max,
        resource.RLIMIT_CPU: limits.seconds_max,
        resource.RLIMIT_FSIZE: limits.decoded_bytes_max + MEBIBYTE,
        resource.RLIMIT_NOFILE: limits.open_files_max,
        resource.RLIMIT_CORE: 0,
    }
    for kind, bound in bounds.items():
        hard = resource.getrlimit(kind)[1]
        value = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (value, value))


def main() -> None:
    """Load the code for the request's format, confine this process, and only then open the upload."""
    warnings.simplefilter("ignore")  # warnings quote the upload
    request = IngestRequest.from_json(sys.stdin.read())
    ingest = FORMATS[request.format].load()
    confine(request.limits)
    sys.stdout.write(answer(request, ingest) + "\n")


if __name__ == "__main__":
    main()
