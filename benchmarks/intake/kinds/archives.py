"""Folders in archives, as systems and download pages pack them."""

from __future__ import annotations

import io
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.intake.inputs import Asked, Build, InBrowser, Input, Outcome, Read, Refused, grey

COUNT = 12
WORDS = ("normal", "sick")
BOTH = Read(WORDS, COUNT)


def images(rng: np.random.Generator, *classes: str) -> Iterator[tuple[str, bytes]]:
    for number in range(COUNT):
        file = io.BytesIO()
        Image.fromarray(grey(rng)).save(file, "PNG")
        yield f"{classes[number % len(classes)]}/{number:03d}.png", file.getvalue()


def zipped(form: Callable[[str], str] = str, *extra: tuple[str, bytes], classes: tuple[str, ...] = WORDS) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        with zipfile.ZipFile(folder / "a.zip", "w") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that are there twice
            for path, data in (*images(rng, *classes), *extra):
                info = zipfile.ZipInfo("x")
                info.filename = form(path)  # a ZipInfo that is made with it would mend it
                archive.writestr(info, data)

    return build


def in_code_page(page: str, *classes: str) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        longest = max(len(name.encode(page)) for name in classes)
        stand_ins = {f"{number}" * longest: name for number, name in enumerate(classes)}
        zipped(classes=tuple(stand_ins))(folder, rng)
        data = (folder / "a.zip").read_bytes()
        for stand_in, name in stand_ins.items():
            data = data.replace(stand_in.encode(), name.encode(page).ljust(longest, b"x"))
        (folder / "a.zip").write_bytes(data)

    return build


def tarred(mode: Any, name: str) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        with tarfile.open(folder / name, mode) as archive:
            for path, data in images(rng, *WORDS):
                info = tarfile.TarInfo(f"./{path}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))

    return build


def encrypted(folder: Path, rng: np.random.Generator) -> None:
    zipped()(folder, rng)
    data = bytearray((folder / "a.zip").read_bytes())
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(magic)
        while at >= 0:
            data[at + offset] |= 1
            at = data.find(magic, at + 4)
    (folder / "a.zip").write_bytes(data)


def cut(folder: Path, rng: np.random.Generator) -> None:
    zipped()(folder, rng)
    data = (folder / "a.zip").read_bytes()
    (folder / "a.zip").write_bytes(data[: len(data) // 2])


def other(head: bytes, name: str) -> Build:
    return lambda folder, _rng: (folder / name).write_bytes(head + bytes(100)) and None  # type: ignore[func-returns-value]


def kaggle(folder: Path, rng: np.random.Generator) -> None:
    names = [(f"images/{number:03d}.png", data) for number, (_, data) in enumerate(images(rng, *WORDS))]
    lines = [f"{number:03d},{WORDS[number % 2]}" for number in range(COUNT)]
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("train.csv", "\n".join(["image,label", *lines]))
        for path, data in names:
            archive.writestr(path, data)


def of_file(name: str, build: Build, expected: Outcome, path: str = "a.zip", **more: Any) -> Input:
    return Input(name, build, expected, path=path, **more)


SIZED = {"width": "16", "height": "16", "channels": "1", "records_declared": "1000"}
JUNK = (("__MACOSX/normal/._000.png", b"junk"), ("normal/.DS_Store", b"junk"))

INPUTS = (
    of_file("zip_plain", zipped(), BOTH, browser=InBrowser(BOTH, SIZED)),
    of_file("zip_of_macos", zipped(str, *JUNK), Read(WORDS, COUNT, said="2 hidden or system files"),
        browser=InBrowser(BOTH, SIZED)),
    of_file("zip_backslash", zipped(lambda path: path.replace("/", "\\")), BOTH, browser=InBrowser(BOTH, SIZED)),
    of_file("zip_own_name_around", zipped(lambda path: f"a/{path}"), BOTH, browser=InBrowser(BOTH, SIZED)),
    of_file("zip_utf8_names", zipped(classes=("unauffällig", "krank")), Read(("krank", "unauffällig"), COUNT),
        browser=InBrowser(Read(("krank", "unauffällig"), COUNT), SIZED)),
    of_file("zip_cp850_names", in_code_page("cp850", "unauffällig", "krankxxxxxx"),
        Asked("--zip-encoding", "unauffällig"), browser=InBrowser(Refused("not in UTF-8"), SIZED)),
    of_file("zip_cp850_names_stated", in_code_page("cp850", "unauffällig", "krankxxxxxx"),
        Read(("krankxxxxxx", "unauffällig"), COUNT), options={"zip_encoding": "cp850"}),
    of_file("zip_cp936_names_stated", in_code_page("cp936", "正常", "肺炎"), Read(("正常", "肺炎"), COUNT),
        options={"zip_encoding": "cp936"}),
    of_file("zip_cp936_names", in_code_page("cp936", "正常", "肺炎"), Asked("--zip-encoding"),
        browser=InBrowser(Refused("not in UTF-8"), SIZED)),
    of_file("zip_duplicate_member", zipped(str, ("normal/000.png", b"other")), Refused("several files called"),
        browser=InBrowser(Refused("have the same name"), SIZED)),
    of_file("zip_leads_out", zipped(str, ("../../evil.png", b"other")), Refused("outside of itself"),
        browser=InBrowser(Refused("leaves its folder"), SIZED)),
    of_file("zip_encrypted", encrypted, Refused("is encrypted"), browser=InBrowser(Refused("encrypted"), SIZED)),
    of_file("zip_cut", cut, Refused("cannot be read as a zip"), browser=InBrowser(Refused("no .zip or .npz"), SIZED)),
    of_file("zip_kaggle_table_stated", kaggle, BOTH, path="archive.zip", options={"labels": "train.csv"}),
    of_file("tar", tarred("w", "a.tar"), BOTH, path="a.tar", browser=InBrowser(Refused("no .zip or .npz"), SIZED)),
    of_file("tar_gz", tarred("w:gz", "a.tar.gz"), BOTH, path="a.tar.gz",
        browser=InBrowser(Refused("no .zip or .npz"), SIZED)),
    of_file("tgz", tarred("w:gz", "a.tgz"), BOTH, path="a.tgz"),
    of_file("tar_xz", tarred("w:xz", "a.tar.xz"), BOTH, path="a.tar.xz"),
    of_file("7z", other(b"7z\xbc\xaf\x27\x1c", "a.7z"), Refused("7z"), path="a.7z",
        browser=InBrowser(Refused("no .zip or .npz"), SIZED)),
    of_file("rar", other(b"Rar!\x1a\x07\x01\x00", "a.rar"), Refused("RAR"), path="a.rar",
        browser=InBrowser(Refused("no .zip or .npz"), SIZED)),
    of_file("zip_kaggle_table", kaggle, Asked("--labels"), path="archive.zip",
        browser=InBrowser(Refused("class/image.png"), SIZED)),
    of_file("zip_wrapper", zipped(lambda path: f"chest_xray/{path}"), Read(WORDS, COUNT, said="chest_xray"),
        browser=InBrowser(BOTH, SIZED)),
    of_file("zip_dots_and_slashes", zipped(lambda path: f".//{path}".replace("/0", "/./0")), BOTH,
        browser=InBrowser(Refused("leaves its folder"), SIZED)),
)  # fmt: skip
