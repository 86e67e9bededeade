"""A multipart form with one file, parsed as it arrives: the file never touches the disk.

Fields come first, then the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.errors import InvalidInput

FIELDS_BYTES_MAX = 16 * 1024
HEAD_BYTES_MAX = 64 * 1024  # before the block with the start of the file


class FileForm:
    """A form whose fields before the file are read, and whose file can be read once."""

    def __init__(self, content_type: str, blocks: Iterator[bytes]) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or b"boundary" not in options:
            raise InvalidInput("This page takes a form with a file.")
        self.fields: dict[str, str] = {}
        self._name, self._value = "", bytearray()
        self._header, self._headers = (bytearray(), bytearray()), dict[bytes, bytes]()
        self._blocks, self._file = blocks, deque[bytes]()
        self._state = "before"  # the file; then "inside" and "after"
        self._seen_bytes, self._field_bytes = 0, 0
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._name_part,
                "on_part_data": self._take,
                "on_part_end": self._end,
            },
        )
        while self._state == "before":
            if self._seen_bytes > HEAD_BYTES_MAX:
                raise InvalidInput("This form is too long.")
            if not self._feed():
                raise InvalidInput("Choose a file.")

    def file(self) -> Iterator[bytes]:
        """Yield the file's bytes, in order. Raise InvalidInput if the form ends early."""
        while True:
            while self._file:
                yield self._file.popleft()
            if self._state == "after":
                return
            if not self._feed():
                raise InvalidInput("The form ended before its file did. Send it again.")

    def _feed(self) -> bool:
        block = next(self._blocks, None)
        if block is None:
            return False
        self._seen_bytes += len(block)
        try:
            self._parser.write(block)
        except MultipartParseError:
            raise InvalidInput("This form cannot be read.") from None
        return True

    def _begin(self) -> None:
        self._name, self._value, self._headers = "", bytearray(), {}

    def _end_header(self) -> None:
        self._headers[bytes(self._header[0]).lower()] = bytes(self._header[1])
        self._header = (bytearray(), bytearray())

    def _name_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options and self._state == "before":
            self._state = "inside"

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._state == "inside":
            self._file.append(data[start:end])
            return
        self._field_bytes += end - start
        if self._field_bytes > FIELDS_BYTES_MAX:
            raise InvalidInput("This form is too long.")
        self._value += data[start:end]

    def _end(self) -> None:
        if self._state == "inside":
            self._state = "after"
        elif self._state == "before":
            self.fields[self._name] = self._value.decode("utf-8", "replace")
