"""The benchmark of small folders: its sets are made in one way, and a row says what was measured."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import generator_runs, small_folders
from benchmarks.generator_runs import OURS, PRIOR, request_of
from benchmarks.small_data import EMOJI, Folder, digits, emoji
from benchmarks.small_folders import REAL, main

ROWS = 240


def small() -> Folder:
    """Bright rows for three classes."""
    labels = np.arange(ROWS) % 3
    images = np.random.default_rng(0).integers(0, 60, (ROWS, 8, 8)).astype(np.uint8)
    images[np.arange(ROWS), 2 * labels + 1] = 250
    return Folder(images, labels.astype(np.int64), images[:60], labels[:60].astype(np.int64), ("a", "b", "c"))


def package(folder: Path, name: str, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}.tgz", "w:gz") as archive:
        for file, content in files.items():
            info = tarfile.TarInfo(f"package/{file}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def picture(brightness: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGBA", (64, 64), (brightness, 0, 0, 128)).save(file, "PNG")
    return file.getvalue()


def test_digits_are_divided_in_one_way() -> None:
    one, two = digits(), digits()
    assert (len(one.labels), len(one.test_labels)) == (1437, 360)
    assert np.array_equal(one.images, two.images)
    cut = one.held_out(100, test=300)
    assert (len(cut.labels), len(cut.test_labels)) == (100, 300)


def test_no_tested_emoji_has_a_twin_among_the_private_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        {"unified": f"{code:X}", "image": f"{code}.png", "category": EMOJI[code % 9], **images}
        for code in range(60)
        for images in [{"has_img_google": True, "has_img_twitter": code != 7}]
    ]
    entries.append({**entries[0], "unified": "skin", "category": "Component"})
    for drawer in ("google", "twitter"):
        files = {f"img/{drawer}/64/{code}.png": picture(4 * code) for code in range(60)}
        files["emoji.json"] = json.dumps(entries).encode()
        package(tmp_path / "npm", f"emoji-datasource-{drawer}-16.0.0", files)
    monkeypatch.setenv("OBSCURA_CACHE", str(tmp_path))
    folder = emoji()
    assert folder.images.shape[1:] == (64, 64, 3)
    assert len(folder.labels) + len(folder.test_labels) == 119
    private, tested = ({tuple(image[0, 0]) for image in part} for part in (folder.images, folder.test_images))
    assert len(tested) == 10
    assert not private & tested
    assert folder.images[..., 1].min() >= 126  # half transparent, on white


@pytest.mark.parametrize("variant", [PRIOR, OURS])
def test_the_prior_alone_releases_means_and_no_covariance(variant: str) -> None:
    recipe, options = request_of(variant)
    assert (recipe, options.get("pooled_share") == 0.0) == ("moments", variant == PRIOR)


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_folders, "SETS", {"small": small})
    monkeypatch.setattr(small_folders, "ROWS", {"small": (20.0,)})
    monkeypatch.setattr(generator_runs, "SAMPLES", 120)
    file = tmp_path / "rows.json"
    command = ["small_folders", "--json", str(file), "--seeds", "0", "--variants"]

    def rows(*variants: str) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", [*command, *variants])
        main()
        found: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
        return found

    first = rows(OURS)
    both = rows(OURS, PRIOR, REAL)
    assert both[:1] == first
    assert [row["variant"] for row in both] == [OURS, PRIOR, REAL]
    assert all(0 <= row["accuracy"] <= 1 and row["n"] == ROWS for row in both)
    assert both[1]["config"]["pooled_share"] == 0
