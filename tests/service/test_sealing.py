"""Sealed files: every change of a byte, a chunk, a length, a key or a context is noticed before a byte is read."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from service.sealing import CHUNK_BYTES, KEY_BYTES, TAG_BYTES, SealBroken, SealedReader, SealedWriter, new_key

KEY = bytes(range(KEY_BYTES))
HEADER_BYTES = 40
SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES + 777]


def content(size: int) -> bytes:
    return bytes((position * 31 + position // 251) % 256 for position in range(size))


def seal(path: Path, data: bytes, *, key: bytes = KEY, context: str = "ds/images", step: int = 10_000) -> Path:
    with path.open("wb") as file:
        writer = SealedWriter(file, key, context)
        for start in range(0, len(data), step):
            writer.write(data[start : start + step])
        writer.finish()
    return path


def unseal(path: Path, *, key: bytes = KEY, context: str = "ds/images") -> bytes:
    with SealedReader(path.open("rb"), key, context) as reader:
        return reader.readall() or b""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [4096, CHUNK_BYTES, 5 * CHUNK_BYTES])
def test_what_is_sealed_opens_again(tmp_path, size, step):
    data = content(size)
    path = seal(tmp_path / "file", data, step=step)
    assert unseal(path) == data
    with SealedReader(path.open("rb"), KEY, "ds/images") as reader:  # one large read goes straight into the target
        target = bytearray(size + 5)
        assert reader.readinto(target) == size
        assert bytes(target[:size]) == data
        assert reader.readinto(target) == 0


def test_reading_from_any_position_like_a_plain_file(tmp_path):
    data = content(3 * CHUNK_BYTES + 777)
    path = seal(tmp_path / "file", data)
    plain = io.BytesIO(data)
    with io.BufferedReader(SealedReader(path.open("rb"), KEY, "ds/images")) as reader:
        reads = [(0, 2, 5), (-700, 2, 900), (0, 0, 4), (CHUNK_BYTES - 2, 0, 5), (7, 1, 2 * CHUNK_BYTES)]
        for offset, whence, size in reads:
            assert reader.seek(offset, whence) == plain.seek(offset, whence)
            assert reader.read(size) == plain.read(size)
            assert reader.tell() == plain.tell()


def test_the_same_content_never_looks_the_same_twice(tmp_path):
    data = content(5000)
    first, second = (seal(tmp_path / name, data).read_bytes() for name in ("one", "two"))
    assert first[:8] == second[:8]
    assert first[8:40] != second[8:40]
    assert all(data[at : at + 16] not in first + second for at in range(0, len(data), 16))
    common = sum(a == b for a, b in zip(first[HEADER_BYTES:], second[HEADER_BYTES:], strict=True))
    assert common < len(data) / 50, "a key stream was used twice"  # 1/256 is expected, 1 of 50 is never reached


def flip(position: int) -> Callable[[bytes], bytes]:
    return lambda sealed: sealed[:position] + bytes([sealed[position] ^ 1]) + sealed[position + 1 :]


def chunk(sealed: bytes, index: int) -> bytes:
    step = CHUNK_BYTES + TAG_BYTES
    return sealed[HEADER_BYTES + index * step :][:step]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "magic word": flip(0),
    "salt": flip(8),
    "first byte": flip(HEADER_BYTES),
    "a byte in the middle": flip(HEADER_BYTES + CHUNK_BYTES + 500),
    "a tag": flip(HEADER_BYTES + CHUNK_BYTES + 3),
    "last byte": flip(-1),
    "one byte cut off": lambda sealed: sealed[:-1],
    "last chunk cut off": lambda sealed: sealed[: -len(chunk(sealed, 3))],
    "only the header": lambda sealed: sealed[:HEADER_BYTES],
    "nothing": lambda sealed: sealed[:0],
    "one byte more": lambda sealed: sealed + b"\0",
    "first chunks swapped": lambda sealed: (
        sealed[:HEADER_BYTES] + chunk(sealed, 1) + chunk(sealed, 0) + chunk(sealed, 2) + chunk(sealed, 3)
    ),
    "a chunk left out": lambda sealed: sealed[:HEADER_BYTES] + chunk(sealed, 0) + chunk(sealed, 2) + chunk(sealed, 3),
    "a chunk repeated": lambda sealed: sealed[:HEADER_BYTES] + chunk(sealed, 0) * 2 + sealed[HEADER_BYTES:][-1000:],
    "last chunk repeated": lambda sealed: sealed + chunk(sealed, 3),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_any_damage_is_noticed_and_not_described(tmp_path, damage):
    path = seal(tmp_path / "file", b"CANARY7f3a" + content(3 * CHUNK_BYTES + 777))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SealBroken) as broken:
        unseal(path)
    assert broken.value.code == "not_found"
    assert "CANARY" not in str(broken.value)
    assert str(tmp_path) not in str(broken.value)
    assert broken.value.__cause__ is None


def test_a_chunk_of_another_file_under_the_same_key_does_not_pass(tmp_path):
    data = content(2 * CHUNK_BYTES)
    mine, other = (seal(tmp_path / name, data).read_bytes() for name in ("mine", "other"))
    (tmp_path / "mixed").write_bytes(mine[:HEADER_BYTES] + chunk(other, 0) + chunk(mine, 1))
    with pytest.raises(SealBroken):
        unseal(tmp_path / "mixed")


def test_another_key_or_another_place_opens_nothing(tmp_path):
    path = seal(tmp_path / "file", content(100))
    for key, context in ((new_key(), "ds/images"), (KEY, "ds/labels"), (KEY, "other/images")):
        with pytest.raises(SealBroken):
            unseal(path, key=key, context=context)
    with pytest.raises(ValueError, match="must have 32"):
        unseal(path, key=KEY[:16])


def test_a_file_that_shrinks_while_it_is_read_is_noticed(tmp_path):
    path = seal(tmp_path / "file", content(3 * CHUNK_BYTES))
    with SealedReader(path.open("rb"), KEY, "ds/images") as reader, path.open("r+b") as file:
        file.truncate(HEADER_BYTES + 1000)
        with pytest.raises(SealBroken):
            reader.read(10)
