"""A format of upload that nobody has: a byte for each label, then the pixels of all images, gray."""

from typing import BinaryIO

import numpy as np

from obscura.wire.uploads import Fault, Refused
from service.ingest.array_files import require_count, store
from service.ingest.request import IngestRequest


def ingest(file: BinaryIO, request: IngestRequest) -> None:
    content = np.frombuffer(file.read(), np.uint8)
    count, rest = divmod(len(content), 1 + request.record_bytes)
    if rest:
        raise Refused(Fault.ARRAY_LENGTH)
    require_count(request, count)
    store(request, content[:count], (), [content[count:]])
