"""Arrays in files: .npz in several hands' ways, and IDX."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.intake.inputs import Asked, Build, ImageInput, InBrowser, Input, Read, Refused

COUNT, SIDE = 12, 28
Array = np.ndarray[Any, Any]
NUMBERS, NAMES = np.arange(COUNT) % 2, np.array(["normal", "sick"])


def images(rng: np.random.Generator, *channels: int, count: int = COUNT) -> Array:
    return rng.integers(0, 256, (count, SIDE, SIDE, *channels), dtype=np.uint8)


def npz(channels: tuple[int, ...] = (), **arrays: Any) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        np.savez(folder / "a.npz", images=images(rng, *channels), **arrays)

    return build


def medmnist(labels: Array, channels: tuple[int, ...] = (), side: int = SIDE) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        arrays = {}
        for part in ("train", "val", "test"):
            arrays[f"{part}_images"] = rng.integers(0, 256, (COUNT, side, side, *channels), dtype=np.uint8)
            arrays[f"{part}_labels"] = labels
        np.savez_compressed(folder / "a.npz", **arrays)

    return build


def keras(folder: Path, rng: np.random.Generator) -> None:
    x, y = images(rng), NUMBERS.astype(np.uint8)
    np.savez(folder / "a.npz", x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])


def channels_first(folder: Path, rng: np.random.Generator) -> None:
    np.savez(folder / "a.npz", images=images(rng, 3).transpose(0, 3, 1, 2).copy(), labels=NUMBERS)


def objects(folder: Path, rng: np.random.Generator) -> None:
    np.savez(folder / "a.npz", images=images(rng), labels=np.array(["a", "b"] * 6, dtype=object))


def floats(folder: Path, rng: np.random.Generator) -> None:
    np.savez(folder / "a.npz", images=images(rng) / 255, labels=NUMBERS)


def volumes(folder: Path, rng: np.random.Generator) -> None:
    np.savez(folder / "a.npz", train_images=images(rng, SIDE, count=2), train_labels=np.array([[0], [1]]))


def unnamed(folder: Path, rng: np.random.Generator) -> None:
    np.savez(folder / "a.npz", images(rng), NUMBERS)


def idx(prefix: str, labels: Array) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        pixels = images(rng)
        head = struct.pack(">4I", 0x803, *pixels.shape)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, COUNT) + bytes(labels.tolist()))

    return build


def of_file(name: str, build: Build, expected: Read | Asked | Refused, **more: Any) -> Input:
    return Input(name, build, expected, path="a.npz", **more)


def shape_is(*shape: int) -> Callable[[ImageInput], str]:
    return lambda sent: "" if {pixels.shape for _, pixels in sent} == {shape} else str({p.shape for _, p in sent})


ZERO_ONE, WORDS = Read(("0", "1"), COUNT), Read(("normal", "sick"), COUNT)
LETTERS = 1 + np.arange(COUNT) % 3
SEVERAL = np.eye(3, dtype=np.uint8)[np.arange(COUNT) % 3] | np.array([[1, 0, 0]], np.uint8)
IN_BROWSER = {"classes": "0, 1", "records_declared": "1000"}

INPUTS = (
    of_file("npz_plain", npz(labels=NUMBERS), ZERO_ONE, browser=InBrowser(ZERO_ONE, IN_BROWSER)),
    of_file("npz_plain_classes", npz(labels=NUMBERS), WORDS, options={"classes": ["normal", "sick"]}),
    of_file("npz_plain_size", npz(labels=NUMBERS), WORDS, options={"classes": ["normal", "sick"], "size": 16}),
    of_file("npz_colour", npz((3,), labels=NUMBERS), Read(("0", "1"), COUNT, looks=shape_is(28, 28, 3)),
        browser=InBrowser(ZERO_ONE, IN_BROWSER)),
    of_file("npz_one_channel", npz((1,), labels=NUMBERS), ZERO_ONE, browser=InBrowser(ZERO_ONE, IN_BROWSER)),
    of_file("npz_rgba", npz((4,), labels=NUMBERS), Read(("0", "1"), COUNT, said="laid on white"),
        browser=InBrowser(Refused("not uint8"), IN_BROWSER)),
    of_file("npz_channels_first", channels_first, Read(("0", "1"), COUNT, looks=shape_is(28, 28, 3))),
    of_file("npz_labels_text", npz(labels=NAMES[NUMBERS]), WORDS,
        browser=InBrowser(Refused("not integers"), IN_BROWSER)),
    of_file("npz_labels_bytes", npz(labels=NAMES[NUMBERS].astype("S")), WORDS),
    of_file("npz_labels_n1", npz(labels=NUMBERS[:, None]), ZERO_ONE,
        browser=InBrowser(Refused("not integers"), IN_BROWSER)),
    of_file("npz_labels_float", npz(labels=NUMBERS * 0.7 + 0.2), Refused("numbers or names"), options={"size": 16},
        browser=InBrowser(Refused("not integers"), IN_BROWSER)),
    of_file("npz_labels_whole_floats", npz(labels=NUMBERS.astype(float)), Refused("astype(int)")),
    of_file("npz_labels_negative", npz(labels=NUMBERS - 1), Asked("--skip-unlabelled", "begin at 0")),
    of_file("npz_labels_too_few", npz(labels=NUMBERS[1:]), Refused("as many labels"),
        browser=InBrowser(Refused("not integers"), IN_BROWSER)),
    of_file("npz_labels_from_1", npz(labels=NUMBERS + 1), Asked("--used-classes", "label 0")),
    of_file("npz_labels_from_1_used", npz(labels=NUMBERS + 1), Read(("1", "2"), COUNT), options={"used_classes": True}),
    of_file("npz_labels_from_1_named", npz(labels=NUMBERS + 1), WORDS,
        options={"used_classes": True, "classes": ["normal", "sick"]}),
    of_file("npz_labels_like_ids", npz(labels=10_000_000 + NUMBERS), Asked("--used-classes")),
    of_file("npz_with_classes", npz(labels=NUMBERS, classes=NAMES), WORDS,
        browser=InBrowser(Refused("no other"), IN_BROWSER)),
    of_file("npz_with_too_few_classes", npz(labels=NUMBERS + 1, classes=NAMES), Refused("labels beyond")),
    of_file("npz_with_an_unused_class", npz(labels=NUMBERS, classes=np.array(list("abc"))), Asked("--used-classes")),
    of_file("npz_of_objects", objects, Refused("must hold two arrays"),
        browser=InBrowser(Refused("not integers"), IN_BROWSER)),
    of_file("npz_of_floats", floats, Asked("--window"), browser=InBrowser(Refused("not uint8"), IN_BROWSER)),
    of_file("npz_of_volumes", volumes, Refused("volumes"), browser=InBrowser(Refused("no other"), IN_BROWSER)),
    of_file("npz_without_names", unnamed, Refused("arr_0")),
    of_file("npz_subjects", npz(labels=NUMBERS, subjects=np.arange(COUNT) // 3), Read(("0", "1"), COUNT, 4),
        unit="subject", browser=InBrowser(Read(("0", "1"), COUNT, 4), {**IN_BROWSER, "subjects_declared": "500"})),
    of_file("npz_subjects_unwanted", npz(labels=NUMBERS, subjects=np.arange(COUNT) // 3), Refused("subject"),
        browser=InBrowser(Refused("no number of people is stated"), IN_BROWSER)),
    of_file("medmnist_pneumonia", medmnist(NUMBERS[:, None].astype(np.uint8)), Read(("0", "1"), COUNT, said="not test"),
        browser=InBrowser(Refused("no other"), IN_BROWSER)),
    of_file("medmnist_test_part", medmnist(NUMBERS[:, None]), ZERO_ONE, options={"split": "test"}),
    of_file("medmnist_colour_64", medmnist(NUMBERS[:, None], (3,), 64),
        Read(("0", "1"), COUNT, looks=shape_is(64, 64, 3))),
    of_file("medmnist_224", medmnist(NUMBERS[:, None], (), 224), ZERO_ONE),
    of_file("medmnist_chest", medmnist(SEVERAL), Asked("--attribute")),
    of_file("medmnist_chest_attribute", medmnist(SEVERAL), Read(("not 1", "1"), COUNT), options={"attribute": "1"}),
    of_file("keras_mnist", keras, Read(("0", "1"), COUNT, said="not test")),
    Input("mnist_idx", idx("train", NUMBERS), ZERO_ONE),
    Input("emnist_letters_idx", idx("emnist-letters-train", LETTERS), Asked("--used-classes", "label 0")),
    Input("emnist_letters_idx_used", idx("emnist-letters-train", LETTERS), Read(("1", "2", "3"), COUNT),
        options={"used_classes": True}),
)  # fmt: skip
