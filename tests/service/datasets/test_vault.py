"""Images at rest: nothing readable below the data folder, a key for each dataset, deletion by destroying the key."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from service.datasets import vault
from service.datasets.vault import SealedArray, Vault, fingerprint_key_path, make_fingerprint_key, read_key, write_key
from service.errors import Conflict, NotFound
from service.ingest.array_files import SEALED_SUFFIX, ArrayFile, context_of
from service.sealing import KEY_BYTES, SealBroken, SealedWriter, new_key
from service.settings import Settings
from tests.service.datasets.world import DATASET, begun, npz, receive
from tests.service.ingest.conftest import npy_header
from tests.together import at_once

pytestmark = pytest.mark.usefixtures("read_here")

OTHER = "ds_" + "b3" * 10
CANARY = b"\xc5\x01CANARY-PIXELS-7f3a\xfe"  # 22 pixels in a row
FACTS = {name: begun(id=name, width=24, records_declared=200_000) for name in (DATASET, OTHER)}


def pictures(count: int = 3) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (count, 4, 24), dtype=np.uint8)
    images[:, 2, : len(CANARY)] = np.frombuffer(CANARY, np.uint8)
    return images


def packed(images: np.ndarray) -> bytes:
    return npz(images, np.arange(len(images)) % 2)  # not compressed: the canary is in it


def store(settings: Settings, dataset_id: str = DATASET) -> np.ndarray:
    images = pictures()
    receive(settings, FACTS[dataset_id], [packed(images)])
    return images


def below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_no_pixel_is_readable_below_the_data_folder_during_an_upload_or_after_it(settings):
    images, seen = pictures(3000), []

    def slowly() -> Iterator[bytes]:
        body = packed(images)
        assert CANARY in body
        for start in range(0, len(body), 2**16):
            yield body[start : start + 2**16]
            seen.extend(path.read_bytes() for path in below(settings.data_dir / "quarantine"))

    receive(settings, FACTS[DATASET], slowly())
    assert max(map(len, seen)) > 2**17
    assert below(settings.data_dir / "quarantine") == []
    assert len(below(settings.data_dir)) == 4
    assert all(CANARY not in content for content in (*seen, *(path.read_bytes() for path in below(settings.data_dir))))
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(DATASET)[0], images)


def test_each_upload_has_a_key_of_its_own_that_its_owner_alone_can_read(tmp_path):
    settings = Settings(data_dir=tmp_path / "data", keys_dir=tmp_path / "other" / "keys")
    make_fingerprint_key(settings)
    keys = {read_key(fingerprint_key_path(settings))}
    for name in (DATASET, OTHER, DATASET):
        images = store(settings, name)
        keys.add(read_key(Vault.of(settings).key_path(name)))
    assert list(map(len, keys)) == [KEY_BYTES] * 4
    for path in (settings.keys_path, *settings.keys_path.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    assert not (settings.data_dir / "keys").exists()
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(DATASET)[0], images)


@pytest.mark.parametrize("damage", [b"", b"short", bytes(KEY_BYTES + 1), None], ids=["empty", "short", "long", "link"])
def test_a_damaged_key_or_a_link_in_its_place_is_no_key(settings, tmp_path, damage):
    store(settings)
    path = Vault.of(settings).key_path(DATASET)
    if damage is None:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes(damage)
    with pytest.raises(NotFound, match="key"):
        Vault.of(settings).open_dataset(DATASET)


def test_files_of_other_datasets_and_other_keys_do_not_open(settings):
    store(settings)
    store(settings, OTHER)
    mine, other = (settings.data_dir / "datasets" / name for name in (DATASET, OTHER))
    opened = Vault.of(settings)
    shutil.copyfile(other / "images.npy.sealed", mine / "images.npy.sealed")
    for _ in range(2):
        with pytest.raises(SealBroken):
            opened.open_dataset(DATASET)
        shutil.copyfile(opened.key_path(OTHER), opened.key_path(DATASET))  # even with the other's key
    shutil.copyfile(other / "labels.npy.sealed", other / "images.npy.sealed")
    with pytest.raises(SealBroken):
        opened.open_dataset(OTHER)


def test_after_the_deletion_a_copy_of_the_files_is_unreadable(settings, tmp_path):
    images = store(settings)
    directory = settings.data_dir / "datasets" / DATASET
    shutil.copytree(directory, tmp_path / "backup")
    key = read_key(Vault.of(settings).key_path(DATASET))
    Vault.of(settings).shred(DATASET)
    assert not directory.exists()
    assert all(key not in path.read_bytes() for path in below(settings.data_dir))
    shutil.copytree(tmp_path / "backup", directory)
    with pytest.raises(NotFound, match="key"):
        Vault.of(settings).open_dataset(DATASET)
    write_key(Vault.of(settings).key_path(DATASET), new_key())
    with pytest.raises(SealBroken):
        Vault.of(settings).open_dataset(DATASET)
    vault.destroy_file(Vault.of(settings).key_path(DATASET))
    write_key(Vault.of(settings).key_path(DATASET), key)  # negative control
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(DATASET)[0], images)


def test_a_key_is_overwritten_before_its_name_goes(tmp_path):
    path = tmp_path / "keys" / "one.key"
    key = new_key()
    write_key(path, key)
    os.link(path, tmp_path / "second-name")  # shows what is left of the file itself
    vault.destroy_file(path)
    vault.destroy_file(path)
    assert not path.exists()
    assert (tmp_path / "second-name").stat().st_size == KEY_BYTES
    assert (tmp_path / "second-name").read_bytes() != key


def test_nothing_is_called_destroyed_while_the_disk_of_the_keys_is_away(settings):
    images = store(settings)
    away = settings.keys_path.with_name("away")
    settings.keys_path.rename(away)
    with pytest.raises(Conflict, match="mounted"):
        Vault.of(settings).shred(DATASET)
    away.rename(settings.keys_path)
    np.testing.assert_array_equal(Vault.of(settings).open_dataset(DATASET)[0], images)


def test_processes_that_start_together_make_one_secret(tmp_path):
    settings = Settings(data_dir=tmp_path / "data")
    path = fingerprint_key_path(settings)
    for _ in range(5):
        at_once(*[lambda: make_fingerprint_key(settings)] * 8)
        first = read_key(path)
        make_fingerprint_key(settings)
        assert read_key(path) == first
        assert below(settings.data_dir) == [path]
        path.unlink()


@pytest.mark.parametrize("values", [np.arange(5), np.arange(0), pictures(7), np.zeros((100_000, 96), np.uint8)])
def test_batches_are_the_array_in_bounded_pieces(tmp_path, values):
    key = new_key()
    path = tmp_path / f"images.npy{SEALED_SUFFIX}"
    with ArrayFile(path, values.shape, values.dtype, key=key, context=context_of(DATASET, "images.npy")) as file:
        file.append(values)
    with SealedArray(tmp_path, DATASET, "images.npy", key) as stored:
        assert (stored.shape, stored.dtype) == (values.shape, values.dtype)
        batches = [batch.copy() for batch in stored.batches()]
    assert all(batch.nbytes <= 4 * 2**20 for batch in batches)
    np.testing.assert_array_equal(np.concatenate(batches) if batches else values, values)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no array",
        b"\x93NUMPY\x02\x00" + bytes(100),
        b"\x93NUMPY\x01\x00\x10\x00{'descr': '|O'} ",
        npy_header("|u1", (2**60,)),
    ],
    ids=["empty", "text", "version", "objects", "a claim of too much, for which nothing is allocated"],
)
def test_what_the_confined_process_writes_is_not_believed(tmp_path, content):
    key = new_key()
    with (tmp_path / "images.npy.sealed").open("wb") as file:
        writer = SealedWriter(file, key, context_of(DATASET, "images.npy"))
        writer.write(content)
        writer.finish()
    with pytest.raises(SealBroken):
        SealedArray(tmp_path, DATASET, "images.npy", key)
