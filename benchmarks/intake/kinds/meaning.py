"""What names of folders and ids stand for: people, parts, classes; copies, and pictures that are lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from benchmarks.intake.inputs import Asked, InBrowser, Input, Outcome, Read, Refused, grey, numbered, put
from benchmarks.intake.kinds.archives import SIZED

PAIR = ("normal", "sick")
Unit = Literal["record", "subject", "public"]


def filled(*folders: str, count: int = 3) -> list[str]:
    """Paths of so many pictures in each folder."""
    return [path for folder in folders for path in numbered(folder, count)]


def folder(name: str, expected: Outcome, paths: Sequence[str], unit: Unit = "record", **options: Any) -> Input:
    """Random pictures at these paths."""
    browser = options.pop("browser", None)
    return Input(name, lambda home, rng: put(home, rng, *paths), expected, unit=unit, options=options, browser=browser)


def archive(name: str, expected: Outcome, paths: Sequence[str], **options: Any) -> Input:
    """The same in a zip."""
    browser = options.pop("browser", None)

    def build(home: Path, rng: np.random.Generator) -> None:
        put(home / "inside", rng, *paths)
        shutil.make_archive(str(home / "a"), "zip", home / "inside")

    return Input(name, build, expected, path="a.zip", options=options, browser=browser)


def table(name: str, expected: Outcome, ids: Sequence[str], unit: Unit = "subject", **options: Any) -> Input:
    """Pictures of two classes whose subjects stand in a table, two of each, one after the other."""

    def build(home: Path, rng: np.random.Generator) -> None:
        paths = numbered("", 2 * len(ids))
        put(home, rng, *paths)
        rows = [f"{path},{PAIR[number % 2]},{ids[number % len(ids)]}" for number, path in enumerate(paths)]
        (home / "labels.csv").write_text("\n".join(["file,label,subject", *rows, ""]), encoding="utf-8")

    return Input(name, build, expected, unit=unit, options={"labels": "labels.csv", **options})


def mended(name: str, expected: Outcome, mend: Callable[[Path, np.random.Generator], None], **options: Any) -> Input:
    """Three pictures of each of two classes, and then something else."""

    def build(home: Path, rng: np.random.Generator) -> None:
        put(home, rng, *filled(*PAIR))
        mend(home, rng)

    return Input(name, build, expected, options=options)


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
    (home / "rare" / "000.xyz").write_bytes(b"no picture")


def _copies(home: Path, _: np.random.Generator) -> None:
    for copy in ("normal/001.png", "normal/002.png", "sick/000.png"):
        (home / copy).write_bytes((home / "normal/000.png").read_bytes())


def _other_format(home: Path, rng: np.random.Generator) -> None:
    pixels = Image.fromarray(grey(rng))
    pixels.save(home / "normal" / "003.bmp")
    (home / "sick" / "003.bmp").write_bytes((home / "normal" / "003.bmp").read_bytes())


def _beside(suffix: str, *lines: str) -> Callable[[Path, np.random.Generator], None]:
    """Write a file beside the input, not in it."""

    def mend(home: Path, _: np.random.Generator) -> None:
        Path(f"{home}{suffix}").write_text("\n".join(lines), encoding="utf-8")

    return mend


PEOPLE = {
    "dates": ("DOE_JANE_19610423", "ROE_RICHARD_19551231"),
    "dates_with_points": ("Meier 23.04.1961", "Weber 31.12.1955"),
    "patient_numbers": ("patient001", "patient002", "patient003"),
    "long_numbers": ("10024511", "10024512"),
    "dicom_names": ("DOE^JANE", "ROE^RICHARD"),
    "given_names": ("Mueller_Anna", "Schmidt_Peter"),
    "record_numbers": ("MRN00123", "MRN00124"),
    "subjects_of_bids": ("sub-01", "sub-02"),
    "unique_identifiers": ("1.2.840.113619.2.55.3", "1.2.840.113619.2.55.4"),
    "barcodes": ("TCGA-02-0006", "TCGA-02-0007"),
}
INPUTS = (
    *(folder(f"people_{name}", Asked("--rename-classes"), filled(*tops)) for name, tops in PEOPLE.items()),
    folder("people_in_public", Asked("--rename-classes"), filled(*PEOPLE["dates"]), "public"),
    folder("one_person_among_classes", Asked("--rename-classes"), filled("normal", "sick", "patient17")),
    folder("people_stated", Read(("patient001", "patient002"), 6), filled("patient001", "patient002"),
           classes="patient001,patient002"),
    folder("many_of_few", Asked("--classes"), filled(*(f"ward {letter}" for letter in "ABCDEFGHIJ"), count=2)),
    folder("few_of_many", Read(tuple(f"kind {letter}" for letter in "ABCDEFGHI"), 108),
           filled(*(f"kind {letter}" for letter in "ABCDEFGHI"), count=12)),
    folder("numbers_with_gaps", Asked("--classes"), filled("101", "205", "317")),
    folder("numbers_that_count", Read(("0", "1", "2"), 9), filled("0", "1", "2")),
    folder("one_folder", Asked("--classes"), filled("pictures")),
    folder("one_folder_stated", Read(("pictures",), 3), filled("pictures"), classes="pictures"),
    folder("train_and_test_of_pictures", Asked("--classes"), filled("train", "test")),
    folder("coco_parts", Asked("--classes"), filled("train2017", "val2017")),
    folder("images_and_masks", Asked("--classes"), filled("images", "masks")),
    folder("masks_beside_classes", Asked("--classes"), filled("normal", "sick", "masks")),
    folder("years", Asked("--classes"), filled("2018", "2019")),
    folder("folds", Asked("--classes"), filled("fold1", "fold2")),
    folder("images_and_masks_of_classes", Asked("--split"),
           filled("images/normal", "images/sick", "masks/normal", "masks/sick")),
    folder("parts_beside_others", Asked("--split"), filled("train/normal", "train/sick", "chest/train/normal")),
    folder("part_chosen", Read(PAIR, 6), filled("images/normal", "images/sick", "masks/normal", "masks/sick"),
           split="images"),
    folder("train_alone", Read(PAIR, 6, said="train/"), filled("train/normal", "train/sick")),
    folder("train_of_parts", Read(PAIR, 6, said="not test/"), filled("train/normal", "train/sick", "test/sick")),
    folder("wrapper", Read(PAIR, 6, said="chest_xray/"), filled("chest_xray/normal", "chest_xray/sick")),
    folder("wrapper_and_parts", Read(PAIR, 6, said="chest_xray/train/"),
           filled("chest_xray/train/normal", "chest_xray/train/sick", "chest_xray/test/sick")),
    folder("wrappers", Read(PAIR, 6, said="a/b/"), filled("a/b/normal", "a/b/sick")),
    archive("zip_of_people", Asked("--rename-classes"), filled(*PEOPLE["dates"]),
            browser=InBrowser(Refused("look like people"), SIZED)),
    archive("zip_of_parts", Asked("--classes"), filled("train", "test"), browser=InBrowser(Refused("parts"), SIZED)),
    archive("zip_with_wrapper", Read(PAIR, 6, said="chest_xray/train/"),
            filled("chest_xray/train/normal", "chest_xray/train/sick", "chest_xray/test/sick"),
            browser=InBrowser(Refused("class/image.png"), SIZED)),
    folder("two_spellings", Asked("--classes"), filled("Normal", "normal", "sick")),
    folder("missing_as_a_class", Asked("--classes"), filled("nan", "sick")),
    folder("people_first", Refused("seem to be the people"), filled(*(f"P{n}/study1" for n in range(4))), "subject"),
    folder("people_first_by_class", Refused("seem to be the people"),
           filled(*(f"x{n}/{label}" for n in range(3) for label in PAIR)), "subject"),
    folder("people_first_by_side", Refused("seem to be the people"),
           filled(*(f"eye{n}/{side}" for n in range(4) for side in ("left", "right"))), "subject"),
    folder("people_first_of_records", Refused("accounts create NAME --unit subject"),
           filled("P0/study1", "P1/study1")),
    folder("people_in_classes", Read(PAIR, 6, 2), filled("normal/P1", "sick/P2"), "subject"),
    folder("people_with_studies", Read(PAIR, 6, 2),
           filled("normal/patient00001/study1", "sick/patient00002/study1"), "subject"),
    folder("people_before_and_after", Read(("after", "before"), 12, 2),
           filled("before/P1", "before/P2", "after/P1", "after/P2"), "subject"),
    folder("part_without_people", Refused("class/subject/picture.png"), filled("train/normal", "train/sick"),
           "subject"),
    folder("people_of_records", Refused("accounts create NAME --unit subject"), filled("normal/P1", "sick/P2")),
    folder("people_in_public_classes", Read(PAIR, 6), filled("normal/P1", "sick/P2"), "public"),
    folder("people_in_names_of_files", Read(PAIR, 12, said="named after persons"),
           [f"{label}/person{number // 2}_virus_{number}.png" for label in PAIR for number in range(6)]),
    *(table(f"subject_{name}", Refused("stands for nobody"), ("P1", "P2", "P3", word))
      for name, word in (("na", "NA"), ("unknown", "unknown"), ("dash", "-"), ("null", "null"), ("empty", ""))),
    table("subject_case", Asked("--join-subjects"), ("P1", "p1", "P2")),
    table("subject_float", Asked("--join-subjects"), ("1", "1.0", "2")),
    table("subject_zeros", Asked("--join-subjects"), ("007", "7", "8")),
    table("subject_unicode", Asked("--join-subjects"), ("Zo\u00eb", "Zoe\u0308", "x")),
    table("subject_joined", Read(PAIR, 6, 2), ("P1", "p1", "P2"), join_subjects=True),
    table("subject_column_of_records", Refused("accounts create NAME --unit subject"), ("P1", "P2", "P3"), "record"),
    table("subject_column_in_public", Read(PAIR, 6), ("P1", "P2", "P3"), "public"),
    table("subject_with_most", Read(PAIR, 16, 3, said="One subject"), ("P1", "P1", "P1", "P1", "P1", "P2", "P1", "P3")),
    mended("dead_links", Asked("--skip-broken", said="a link to a file that is not there"), _dead_links),
    mended("dead_links_skipped", Read(PAIR, 6), _dead_links, skip_broken=True),
    mended("class_of_dead_links", Asked("--skip-broken", said="rare"), _class_of_dead_links),
    mended("class_of_torn_pictures", Asked("--skip-broken", said="No picture of the class sick"), _torn_class),
    mended("class_of_other_files", Asked("--skip-broken", said="No picture of the class rare"), _class_of_other_files),
    mended("copies", Read(PAIR, 6, said="more than once"), _copies),
    mended("copy_in_two_classes", Read(PAIR, 8, said="in several classes"), _other_format),
    mended("renamed", Read(("healthy", "ill"), 6), _beside(".csv", "old,new", "normal,healthy", "sick,ill"),
           rename_classes="{folder}.csv"),
    mended("renamed_to_one", Read(("lungs",), 6), _beside(".csv", "old,new", "normal,lungs", "sick,lungs"),
           rename_classes="{folder}.csv"),
    mended("renamed_in_part", Refused("does not rename every class"), _beside(".csv", "old,new", "normal,healthy"),
           rename_classes="{folder}.csv"),
    mended("classes_in_a_file", Read(("sick", "normal", "rare"), 6), _beside(".txt", "sick", "normal", "rare"),
           classes="{folder}.txt"),
)  # fmt: skip
