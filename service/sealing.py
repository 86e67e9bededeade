"""Sealed files: authenticated encryption in chunks that cannot be changed, truncated, reordered or swapped.

Implements the STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizár 2015 (eprint 2015/189) over AES-256-GCM.
A file is a magic word, 32 random bytes of salt, and the content in chunks of 64 KiB, each with its own tag. A file's
key is derived by HKDF-SHA256 from the owner's key, the salt and the file's context. So two files never share a key, and
a file that replaces another one does not open. A chunk's nonce is its index and a flag for the last chunk, so chunks
cannot be reordered, repeated, omitted or truncated.
"""

from __future__ import annotations

import io
import os
import secrets
from typing import IO, Any, BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from service.errors import NotFound

KEY_BYTES = 32
CHUNK_BYTES = 2**16
TAG_BYTES = 16
_MAGIC = b"OBSCURA1"
_SALT_BYTES = 32
_HEADER_BYTES = len(_MAGIC) + _SALT_BYTES
_STEP_BYTES = CHUNK_BYTES + TAG_BYTES


class SealBroken(NotFound):
    """A sealed file was changed, or was sealed with another key."""

    def __init__(self) -> None:
        super().__init__("A stored file is damaged, or was sealed with another key.")


def new_key() -> bytes:
    """Return a fresh random key of 32 bytes."""
    return secrets.token_bytes(KEY_BYTES)


class SealedWriter(io.RawIOBase):
    """Writes a sealed file from front to back.

    Args:
        file: empty and open for writing; the caller flushes and closes it.
        key: 32 bytes.
        context: identifies the file among all files sealed with this key; needed to read it.
    """

    def __init__(self, file: IO[bytes], key: bytes, context: str) -> None:
        salt = secrets.token_bytes(_SALT_BYTES)
        self._file, self._cipher = file, _cipher(key, salt, context)
        self._index, self._waiting = 0, bytearray()
        self._put(_MAGIC + salt)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        content = memoryview(data)
        for start in range(0, len(content), CHUNK_BYTES):
            self._waiting += content[start : start + CHUNK_BYTES]
            if len(self._waiting) > CHUNK_BYTES:  # keep the last chunk for `finish`, which marks it as last
                self._seal(self._waiting[:CHUNK_BYTES], last=False)
                del self._waiting[:CHUNK_BYTES]
        return len(data)

    def finish(self) -> None:
        """Write the last chunk. Without it, the file does not open."""
        self._seal(self._waiting, last=True)
        self._waiting = bytearray()

    def _seal(self, chunk: bytearray, *, last: bool) -> None:
        self._put(self._cipher.encrypt(_nonce(self._index, last=last), chunk, None))
        self._index += 1

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # an unbuffered file may write only a part
            rest = rest[self._file.write(rest) :]


class SealedReader(io.RawIOBase):
    """The content of a sealed file, seekable. Only authenticated content is returned.

    Args:
        file: a regular file, open for reading. It is closed with this reader, or if opening fails.
        key: the file's key.
        context: the file's context.

    Raises:
        SealBroken: the file is too short, or its last chunk, which authenticates the length, was changed. If another
            chunk was changed, reading it raises SealBroken.
    """

    def __init__(self, file: BinaryIO, key: bytes, context: str) -> None:
        super().__init__()
        self._file, self._at = file, 0
        try:
            # Read the last chunk first: its flag authenticates the length.
            sealed_bytes = os.fstat(file.fileno()).st_size - _HEADER_BYTES
            self._chunks = max(-(-sealed_bytes // _STEP_BYTES), 1)
            self.size = sealed_bytes - self._chunks * TAG_BYTES  # size of the content
            header = os.pread(file.fileno(), _HEADER_BYTES, 0)
            if self.size < (self._chunks - 1) * CHUNK_BYTES or not header.startswith(_MAGIC):
                raise SealBroken
            self._cipher = _cipher(key, header[len(_MAGIC) :], context)
            self._cached_index, self._cached = -1, bytearray()
            self._chunk(self._chunks - 1)
        except BaseException:
            file.close()
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise ValueError("cannot seek to a position before the beginning of the file")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        target = memoryview(buffer).cast("B")
        done = 0
        while done < len(target) and self._at < self.size:
            index, start = divmod(self._at, CHUNK_BYTES)
            length = self._length(index)
            rest = target[done:]
            if start == 0 and len(rest) >= length:
                self._open(index, rest[:length])
                taken = length
            else:
                chunk = self._chunk(index)
                taken = min(length - start, len(rest))
                rest[:taken] = chunk[start : start + taken]
            done += taken
            self._at += taken
        return done

    def close(self) -> None:
        self._cached = bytearray()
        self._file.close()
        super().close()

    def _length(self, index: int) -> int:
        return CHUNK_BYTES if index < self._chunks - 1 else self.size - index * CHUNK_BYTES

    def _chunk(self, index: int) -> memoryview:
        if index != self._cached_index:
            self._cached_index = -1
            self._cached = bytearray(self._length(index))
            self._open(index, memoryview(self._cached))
            self._cached_index = index
        return memoryview(self._cached)

    def _open(self, index: int, target: memoryview) -> None:
        sealed = os.pread(self._file.fileno(), len(target) + TAG_BYTES, _HEADER_BYTES + index * _STEP_BYTES)
        nonce = _nonce(index, last=index == self._chunks - 1)
        try:
            self._cipher.decrypt_into(nonce, sealed, None, target)
        except (InvalidTag, ValueError):  # also if the file shrinks while it is read
            raise SealBroken from None


def _cipher(key: bytes, salt: bytes, context: str) -> AESGCM:
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key has {len(key)} bytes; it must have {KEY_BYTES}")
    info = b"obscura sealed file 1 " + context.encode()
    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, info).derive(key))


def _nonce(index: int, *, last: bool) -> bytes:
    return index.to_bytes(11, "big") + bytes([last])
