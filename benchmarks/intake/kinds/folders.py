"""Folders of images, with and without tables: the lines of `inputs.jsonl`, and what needs more than files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.intake.inputs import (
    COUNT,
    WORDS,
    Asked,
    Build,
    Input,
    Outcome,
    Read,
    Refused,
    filled,
    grey,
    numbered,
    put,
    read_lines,
    table,
)


def mended(name: str, expected: Outcome, mend: Build, **options: Any) -> Input:
    def build(home: Path, rng: np.random.Generator) -> None:
        put(home, rng, *filled(*WORDS))
        mend(home, rng)

    return Input(name, build, expected, options=options)


def given(name: str, build: Build, expected: Outcome, labels: str = "labels.csv", **more: Any) -> Input:
    options = {"labels": labels, **more.pop("options", {})}
    return Input(name, build, expected, options=options, **more)


def _dead_links(home: Path, _: np.random.Generator) -> None:
    for number in range(3, 6):
        (home / "sick" / f"{number:03d}.png").symlink_to("../../.git/annex/objects/x")


def _class_of_dead_links(home: Path, _: np.random.Generator) -> None:
    (home / "rare").mkdir()
    (home / "rare" / "000.png").symlink_to("../../.git/annex/objects/x")


def _torn_class(home: Path, _: np.random.Generator) -> None:
    for file in (home / "sick").iterdir():
        file.write_bytes(file.read_bytes()[:40])


def _class_of_other_files(home: Path, _: np.random.Generator) -> None:
    (home / "rare").mkdir()
    (home / "rare" / "000.xyz").write_bytes(b"no image")


def _copies(home: Path, _: np.random.Generator) -> None:
    for copy in ("normal/001.png", "normal/002.png", "sick/000.png"):
        (home / copy).write_bytes((home / "normal/000.png").read_bytes())


def _other_format(home: Path, rng: np.random.Generator) -> None:
    pixels = Image.fromarray(grey(rng))
    pixels.save(home / "normal" / "003.bmp")
    (home / "sick" / "003.bmp").write_bytes((home / "normal" / "003.bmp").read_bytes())


def _saved(suffix: str, text: str, encoding: str = "utf-8") -> Build:
    def mend(home: Path, _: np.random.Generator) -> None:
        Path(f"{home}{suffix}").write_bytes(text.encode(encoding))

    return mend


BESIDE = [f"{label}/{number}{end}.png" for label in WORDS for number in range(3) for end in ("", "_mask")]


def _table_of_images(home: Path, rng: np.random.Generator) -> None:
    put(home, rng, *BESIDE)
    rows = [f"{path},{path.partition('/')[0]}" for path in BESIDE if "_mask" not in path]
    (home / "labels.csv").write_text("\n".join(["file,label", *rows, ""]), encoding="utf-8")


def _json_lines(place: Path, rng: np.random.Generator) -> None:
    put(place, rng, *numbered("", COUNT))
    lines = [json.dumps({"file_name": f"{n:03d}.png", "label": WORDS[n % 2], "age": 40}) for n in range(COUNT)]
    (place / "labels.jsonl").write_text("\n".join(lines), "utf-8")


def _parts(place: Path, rng: np.random.Generator) -> None:
    put(place, rng, *(f"HAM_part_{1 + n % 2}/ISIC_{n:05d}.jpg" for n in range(COUNT)))
    lines = [f"L{n},ISIC_{n:05d},{('nv', 'mel')[n % 2]},histo,50,male" for n in range(COUNT)]
    (place / "HAM10000_metadata.csv").write_text("\n".join(["lesion_id,image_id,dx,dx_type,age,sex", *lines]))


def _chexpert(place: Path, rng: np.random.Generator) -> None:
    paths = [f"train/patient{n // 2:05d}/study1/view{1 + n % 2}_frontal.jpg" for n in range(COUNT)]
    put(place, rng, *paths)
    lines = [f"CheXpert-v1.0-small/{path},F,{n % 2}.0,{('', '1.0', '-1.0')[n % 3]}" for n, path in enumerate(paths)]
    (place / "train.csv").write_text("\n".join(["Path,Sex,No Finding,Edema", *lines]))


def _same_stem(place: Path, rng: np.random.Generator) -> None:
    put(place, rng, "a/000.png", "b/000.png")
    (place / "labels.csv").write_text("file,label\n000,normal\n")


def _kaggle(place: Path, rng: np.random.Generator) -> None:
    put(place, rng, *numbered("train", COUNT), *numbered("test", COUNT))
    lines = [f"{n:03d},{n % 2}" for n in range(COUNT)]
    (place / "train.csv").write_text("\n".join(["image,label", *lines]))


def _gzipped(place: Path, rng: np.random.Generator) -> None:
    table("file,label", "{file},{label}")(place, rng)
    (place / "labels.csv.gz").write_bytes(gzip.compress((place / "labels.csv").read_bytes()))


def _accents(place: Path, rng: np.random.Generator) -> None:
    put(place, rng, *(f"La\u0308sion {n}.png" for n in range(COUNT)))
    lines = [f"L\u00e4sion {n}.png,{WORDS[n % 2]}" for n in range(COUNT)]
    (place / "labels.csv").write_text("\n".join(["file,label", *lines]), "utf-8")


def _dead(place: Path, rng: np.random.Generator) -> None:
    table("file,label", "{file},{label}")(place, rng)
    (place / "003.png").unlink()


def _parts_below(place: Path, rng: np.random.Generator) -> None:
    paths = [f"{part}/{n:03d}.png" for part in ("train", "test") for n in range(COUNT)]
    put(place, rng, *paths)
    lines = [json.dumps({"file_name": path, "label": WORDS[n % 2]}) for n, path in enumerate(paths)]
    (place / "metadata.jsonl").write_text("\n".join(lines), "utf-8")


def _arrays(*names: str) -> Build:
    def build(place: Path, rng: np.random.Generator) -> None:
        for name in names:
            with (place / name).open("wb") as file:
                np.savez(file, images=rng.integers(0, 256, (4, 16, 16), dtype=np.uint8), labels=np.arange(4) % 2)

    return build


INPUTS = (
    *read_lines(),
    Input("masks_left_out_by_a_table", _table_of_images, Read(WORDS, 6), options={"labels": "labels.csv"}),
    mended("dead_links", Asked("--skip-broken", said="a link to a file that is not there"), _dead_links),
    mended("dead_links_skipped", Read(WORDS, 6), _dead_links, skip_broken=True),
    mended("class_of_dead_links", Asked("--skip-broken", said="rare"), _class_of_dead_links),
    mended("class_of_torn_images", Asked("--skip-broken", said="No image of the class sick"), _torn_class),
    mended("class_of_other_files", Asked("--skip-broken", said="No image of the class rare"), _class_of_other_files),
    mended("copies", Read(WORDS, 6, said="more than once"), _copies),
    mended("copy_in_two_classes", Read(WORDS, 8, said="in several classes"), _other_format),
    mended("renamed", Read(("healthy", "ill"), 6), _saved(".csv", "old,new\nnormal,healthy\nsick,ill"),
           rename_classes="{folder}.csv"),
    mended("renamed_to_one", Read(("lungs",), 6), _saved(".csv", "old,new\nnormal,lungs\nsick,lungs"),
           rename_classes="{folder}.csv"),
    mended("renamed_in_part", Refused("does not rename every class"), _saved(".csv", "old,new\nnormal,healthy"),
           rename_classes="{folder}.csv"),
    *(mended(f"renamed_{name}", Read(("healthy", "ill"), 6), _saved(".csv", text, encoding),
             rename_classes="{folder}.csv")
      for name, text, encoding in (
          ("by_excel", "old;new\r\nnormal;healthy\r\nsick;ill\r\n\r\n", "utf-8-sig"),
          ("as_unicode_text", "old\tnew\r\nnormal\thealthy\r\nsick\till\r\n", "utf-16"),
          ("with_quotes", 'sep=,\r"Old","New"\r"normal","healthy"\r"sick","ill"\r', "utf-16-le"))),
    mended("classes_of_notepad", Read(("sick", "normal"), 6), _saved(".txt", "sick\r\nnormal\r\n", "utf-16"),
           classes="{folder}.txt"),
    mended("classes_in_a_file", Read(("sick", "normal", "rare"), 6), _saved(".txt", "sick\nnormal\nrare"),
           classes="{folder}.txt"),
    given("kaggle_layout_stated", _kaggle, Read(("0", "1"), COUNT, said="train/, labels from train.csv"), "train.csv"),
    given("csv_ham10000", _parts, Read(("mel", "nv"), COUNT), "HAM10000_metadata.csv"),
    given("jsonl", _json_lines, Read(WORDS, COUNT), "labels.jsonl"),
    given("csv_same_stem", _same_stem, Refused("may be any of")),
    given("csv_dead_row", _dead, Asked("--skip-broken", "003.png")),
    given("csv_dead_row_skipped", _dead, Read(WORDS, COUNT - 1), options={"skip_broken": True}),
    given("csv_chexpert_paths_subjects", _chexpert, Read(("not No Finding", "No Finding"), COUNT, 6), "train.csv",
        unit="subject", options={"attribute": "No Finding"}),
    given("csv_chexpert_paths", _chexpert, Refused("subject"), "train.csv", options={"attribute": "No Finding"}),
    Input("kaggle_layout", _kaggle, Asked("--labels", "train.csv")),
    given("csv_gzipped", _gzipped, Read(WORDS, COUNT), "labels.csv.gz"),
    given("csv_accents_in_two_forms", _accents, Read(WORDS, COUNT)),
    Input("metadata_above_parts", _parts_below, Read(WORDS, COUNT, said="not test/")),
    Input("metadata_above_parts_chosen", _parts_below, Read(WORDS, COUNT, said="test/"), options={"split": "test"}),
    Input("arrays_in_a_folder", _arrays("A.NPZ"), Refused("Push each .npz by itself")),
)  # fmt: skip
