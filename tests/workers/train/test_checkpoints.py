"""Checkpoints: whole or absent, and unreadable to anybody who lacks the key of the dataset they were made from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from service.sealing import CHUNK_BYTES, new_key
from service.storage.folder import FolderStorage
from workers.recipes.interface import CheckpointDamaged, TrainingData, load_checkpoint, save_checkpoint
from workers.train.inputs import CHECKPOINT_FILE, SealedFolder

CANARY = b"CANARY7f3a" * 20
KEY = new_key()


def folder(directory: Path, *, key: bytes = KEY, context: str = "job one") -> SealedFolder:
    return SealedFolder(FolderStorage(directory.parent), directory.name, key, context)


def private_state() -> dict[str, Any]:
    return {"weights": torch.from_numpy(np.frombuffer(CANARY, np.uint8).copy()), "more": torch.arange(50_000)}


def test_a_checkpoint_is_whole_or_absent(tmp_path):
    place = folder(tmp_path)
    assert load_checkpoint(place) == {}
    state = {"weights": torch.arange(4), "optimizer": {"lr": [0.1]}}
    save_checkpoint(place, state)

    class Unreadable:
        def __reduce__(self) -> Any:
            raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        save_checkpoint(place, {"weights": Unreadable()})
    found = load_checkpoint(place)
    assert found["optimizer"] == {"lr": [0.1]}
    assert torch.equal(found["weights"], torch.arange(4))
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_FILE]
    assert (tmp_path / CHECKPOINT_FILE).stat().st_mode & 0o077 == 0


def test_nothing_shows_what_it_holds(tmp_path):
    place = folder(tmp_path)
    save_checkpoint(place, private_state())
    assert load_checkpoint(place)["weights"].numpy().tobytes() == CANARY
    assert CANARY[:10] not in (tmp_path / CHECKPOINT_FILE).read_bytes()
    assert KEY.hex() not in repr(place)
    assert repr(KEY) not in repr(place)
    assert repr(TrainingData(np.zeros(2), np.zeros(2), ("a",))) == "TrainingData(<private>, classes=1)"


@pytest.mark.parametrize("change", [{"key": new_key()}, {"context": "job two"}])
def test_another_key_or_another_job_opens_nothing(tmp_path, change):
    save_checkpoint(folder(tmp_path), private_state())
    with pytest.raises(CheckpointDamaged):
        load_checkpoint(folder(tmp_path, **change))


@pytest.mark.parametrize("at", [0, 60, CHUNK_BYTES + 500, -1])
def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path, at):
    save_checkpoint(folder(tmp_path), private_state())
    path = tmp_path / CHECKPOINT_FILE
    content = bytearray(path.read_bytes())
    assert len(content) > 3 * CHUNK_BYTES
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointDamaged):
        load_checkpoint(folder(tmp_path))


def test_a_link_is_not_followed(tmp_path):
    save_checkpoint(folder(tmp_path / "real"), private_state())
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / CHECKPOINT_FILE).symlink_to(tmp_path / "real" / CHECKPOINT_FILE)
    assert load_checkpoint(folder(tmp_path / "work")) == {}
