"""The public sets of benchmarks are always made in the same way."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.small_data import EMOJI, digits, emoji
from tests.benchmarks.conftest import light_and_dark
from tests.pictures import picture


def package(folder: Path, name: str, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}.tgz", "w:gz") as archive:
        for file, content in files.items():
            info = tarfile.TarInfo(f"package/{file}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_digits_are_divided_in_one_way():
    one, two = digits(), digits()
    assert (len(one.labels), len(one.test_labels)) == (1437, 360)
    assert np.array_equal(one.images, two.images)
    cut = one.held_out(100, test=300)
    assert (len(cut.labels), len(cut.test_labels)) == (100, 300)


def test_settings_are_chosen_on_training_images_that_are_not_trained_on():
    whole = light_and_dark()
    folder = whole.tuning(60, 40)
    assert np.array_equal(folder.images, whole.images[:60])
    assert np.array_equal(folder.test_images, whole.images[60:])
    with pytest.raises(ValueError, match="more than 100"):
        whole.tuning(61, 40)


def test_no_tested_emoji_has_a_twin_among_the_private_ones(tmp_path, monkeypatch):
    entries = [
        {"unified": f"{code:X}", "image": f"{code}.png", "category": EMOJI[code % 9], **images}
        for code in range(60)
        for images in [{"has_img_google": True, "has_img_twitter": code != 7}]
    ]
    entries.append({**entries[0], "unified": "skin", "category": "Component"})
    for drawer in ("google", "twitter"):
        files = {
            f"img/{drawer}/64/{code}.png": picture(mode="RGBA", size=(64, 64), value=(4 * code, 0, 0, 128))
            for code in range(60)
        }
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
