"""What names of folders and ids stand for: people, parts, classes; copies, and images that are lost."""

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
    """Paths of so many images in each folder."""
    return [path for folder in folders for path in numbered(folder, count)]


def folder(name: str, expected: Outcome, paths: Sequence[str], unit: Unit = "record", **options: Any) -> Input:
    """Random images at these paths."""
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
    """Images of two classes whose subjects stand in a table, two of each, one after the other."""

    def build(home: Path, rng: np.random.Generator) -> None:
        paths = numbered("", 2 * len(ids))
        put(home, rng, *paths)
        rows = [f"{path},{PAIR[number % 2]},{ids[number % len(ids)]}" for number, path in enumerate(paths)]
        (home / "labels.csv").write_text("\n".join(["file,label,subject", *rows, ""]), encoding="utf-8")

    return Input(name, build, expected, unit=unit, options={"labels": "labels.csv", **options})


def mended(name: str, expected: Outcome, mend: Callable[[Path, np.random.Generator], None], **options: Any) -> Input:
    """Three images of each of two classes, and then something else."""

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
    (home / "rare" / "000.xyz").write_bytes(b"no image")


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


def _saved(suffix: str, text: str, encoding: str) -> Callable[[Path, np.random.Generator], None]:
    """Write a text beside the input, as a program saves it."""

    def mend(home: Path, _: np.random.Generator) -> None:
        Path(f"{home}{suffix}").write_bytes(text.encode(encoding))

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
    "patients_and_nodes": ("patient_004_node_4", "patient_009_node_1"),
    "patients_and_sides": ("patient_004_left", "patient_004_right", "patient_009_left"),
    "sessions_of_bids": ("sub-04_ses-01", "sub-09_ses-01", "sub-11_ses-01"),
    "subjects_of_adni": ("002_S_0295", "002_S_4213"),
    "eyes": ("10_left", "10_right", "11_left"),
    "initials": ("JD1961", "MK1958"),
    "hashes": ("anon_9f86d081", "anon_60303ae2"),
}
IDENTIFIERS = {
    "lidc": ("LIDC-IDRI-0001", "LIDC-IDRI-0002"),
    "oasis": ("OAS1_0001_MR1", "OAS1_0002_MR1"),
    "dicom_files": ("IM-0001-0001", "IM-0001-0002"),
    "padded": ("001", "002", "003"),
    "samples": ("sample17", "sample23", "sample41"),
    "slides": ("K12_b3", "K15_b1", "K15_b2"),
}
CLASSES = {
    "padded": tuple(f"class_{number:03}" for number in range(10)),
    "grades": tuple(f"grade_{number}" for number in range(1, 6)),
    "birads": tuple(f"bi-rads {number}" for number in range(7)),
    "ages": ("20-29", "30-39", "40-49"),
    "types": ("no diabetes", "type 1 diabetes", "type 2 diabetes"),
    "covid": ("covid-19", "normal"),
    "stages": ("stage II", "stage IIIa", "stage IV"),
    "sequences": ("T1", "T2"),
}
MASKS = {
    "of_decathlon": ("imagesTr", "imagesTs", "labelsTr"),
    "of_isic": ("ISIC2018_Task1-2_Training_Input", "ISIC2018_Task1_Training_GroundTruth"),
    "short": ("img", "seg"),
    "of_each_class": ("benign", "benign_mask", "malignant", "malignant_mask"),
}
BESIDE = [f"{label}/{number}{end}.png" for label in PAIR for number in range(3) for end in ("", "_mask")]


def _table_of_images(home: Path, rng: np.random.Generator) -> None:
    put(home, rng, *BESIDE)
    rows = [f"{path},{path.partition('/')[0]}" for path in BESIDE if "_mask" not in path]
    (home / "labels.csv").write_text("\n".join(["file,label", *rows, ""]), encoding="utf-8")


INPUTS = (
    *(folder(f"people_{name}", Asked("--rename-classes"), filled(*tops)) for name, tops in PEOPLE.items()),
    *(folder(f"identifiers_{name}", Asked("--classes", "numbers of people or records"), filled(*tops, count=30))
      for name, tops in IDENTIFIERS.items()),
    folder("identifiers_stated", Read(IDENTIFIERS["lidc"], 6), filled(*IDENTIFIERS["lidc"]),
           classes=",".join(IDENTIFIERS["lidc"])),
    folder("identifiers_in_public", Asked("--classes"), filled(*IDENTIFIERS["oasis"]), "public"),
    *(folder(f"classes_{name}", Read(tuple(sorted(tops)), 2 * len(tops)), filled(*tops, count=2))
      for name, tops in CLASSES.items()),
    *(folder(f"masks_{name}", Asked("--classes", "masks of the images"), filled(*tops))
      for name, tops in MASKS.items()),
    folder("masks_stated", Read(("imagesTr", "labelsTr"), 6), filled("imagesTr", "labelsTr"),
           classes="imagesTr,labelsTr"),
    folder("masks_beside_images", Asked("--labels", "their masks"), BESIDE),
    folder("masks_of_subjects", Asked("--labels", "their masks"),
           filled("normal/P1/images", "normal/P1/masks", "sick/P2/images"), "subject"),
    folder("masks_inside_classes", Asked("--split"), filled(*(f"{c}/{kind}" for c in PAIR for kind in ("img", "seg")))),
    folder("masks_inside_classes_chosen", Read(PAIR, 6),
           filled(*(f"{c}/{kind}" for c in PAIR for kind in ("img", "seg"))), split="img"),
    Input("masks_left_out_by_a_table", _table_of_images, Read(PAIR, 6), options={"labels": "labels.csv"}),
    folder("people_in_public", Asked("--rename-classes"), filled(*PEOPLE["dates"]), "public"),
    folder("one_person_among_classes", Asked("--rename-classes"), filled("normal", "sick", "patient17")),
    folder("people_stated", Read(("patient001", "patient002"), 6), filled("patient001", "patient002"),
           classes="patient001,patient002"),
    folder("many_of_few", Asked("--classes"), filled(*(f"ward {letter}" for letter in "ABCDEFGHIJ"), count=2)),
    folder("few_of_many", Read(tuple(f"kind {letter}" for letter in "ABCDEFGHI"), 108),
           filled(*(f"kind {letter}" for letter in "ABCDEFGHI"), count=12)),
    folder("numbers_with_gaps", Asked("--classes"), filled("101", "205", "317")),
    folder("numbers_that_count", Read(("0", "1", "2"), 9), filled("0", "1", "2")),
    folder("one_folder", Asked("--classes"), filled("images")),
    folder("one_folder_stated", Read(("images",), 3), filled("images"), classes="images"),
    folder("train_and_test_of_images", Asked("--classes"), filled("train", "test")),
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
    folder("people_first_of_records", Refused("accounts create NAME --unit subject"), filled("P0/study1", "P1/study1")),
    folder("people_in_classes", Read(PAIR, 6, 2), filled("normal/P1", "sick/P2"), "subject"),
    folder("people_with_studies", Read(PAIR, 6, 2),
           filled("normal/patient00001/study1", "sick/patient00002/study1"), "subject"),
    folder("people_before_and_after", Read(("after", "before"), 12, 2),
           filled("before/P1", "before/P2", "after/P1", "after/P2"), "subject"),
    folder("part_without_people", Refused("class/subject/image.png"), filled("train/normal", "train/sick"),
           "subject"),
    folder("people_of_records", Refused("accounts create NAME --unit subject"), filled("normal/P1", "sick/P2")),
    folder("people_in_public_classes", Read(PAIR, 6), filled("normal/P1", "sick/P2"), "public"),
    *(folder(f"people_in_names_{name}", Read(PAIR, 16, said="named after persons"),
             [f"{PAIR[n % 2]}/{form.format(n, each)}.png" for n in range(8) for each in marks])
      for name, form, marks in (
          ("with_sides", "{}_{}", ("left", "right")), ("with_letters", "P{}_{}", "LR"),
          ("with_eyes", "{}{}", ("OD", "OS")),
          ("with_views", "x{}_{}", ("ap", "lateral")), ("with_slices", "vol{}_slice{}", ("001", "002")),
          ("with_numbers", "scan{}_{}", ("001", "002")), ("with_frames", "v{}_frame_{}", "01"))),
    folder("people_in_names_of_files", Read(PAIR, 12, said="named after persons"),
           [f"{label}/person{number // 2}_virus_{number}.png" for label in PAIR for number in range(6)]),
    *(table(f"subject_{name}", Refused("stands for nobody"), ("P1", "P2", "P3", word))
      for name, word in (("na", "NA"), ("unknown", "unknown"), ("dash", "-"), ("null", "null"), ("empty", ""))),
    table("subject_case", Asked("--join-subjects"), ("P1", "p1", "P2")),
    table("subject_float", Asked("--join-subjects"), ("1", "1.0", "2")),
    table("subject_zeros", Asked("--join-subjects"), ("007", "7", "8")),
    table("subject_zeros_of_some", Asked("--join-subjects", "leading zeros"), ("0007", "0008", "12")),
    table("subject_decimals", Asked("--join-subjects", "decimals"), ("1.0", "2.0", "3.0")),
    *(table(f"subject_{name}", Refused(said), ("P1", "P2", "P3", written))
      for name, said, written in (
          ("mark", "byte-order mark", "\ufeffP4"), ("unseen", "U+200B", "P\u200b4"), ("quoted", "quotation", "'P4"),
          ("two_in_one", "separator", '"P4;P5"'), ("exponent", "scientific", "1.2E+05"))),
    table("subject_unicode", Asked("--join-subjects"), ("Zo\u00eb", "Zoe\u0308", "x")),
    table("subject_joined", Read(PAIR, 6, 2), ("P1", "p1", "P2"), join_subjects=True),
    table("subject_column_of_records", Refused("accounts create NAME --unit subject"), ("P1", "P2", "P3"), "record"),
    table("subject_column_in_public", Read(PAIR, 6), ("P1", "P2", "P3"), "public"),
    table("subject_with_most", Read(PAIR, 16, 3, said="One subject"), ("P1", "P1", "P1", "P1", "P1", "P2", "P1", "P3")),
    mended("dead_links", Asked("--skip-broken", said="a link to a file that is not there"), _dead_links),
    mended("dead_links_skipped", Read(PAIR, 6), _dead_links, skip_broken=True),
    mended("class_of_dead_links", Asked("--skip-broken", said="rare"), _class_of_dead_links),
    mended("class_of_torn_images", Asked("--skip-broken", said="No image of the class sick"), _torn_class),
    mended("class_of_other_files", Asked("--skip-broken", said="No image of the class rare"), _class_of_other_files),
    mended("copies", Read(PAIR, 6, said="more than once"), _copies),
    mended("copy_in_two_classes", Read(PAIR, 8, said="in several classes"), _other_format),
    mended("renamed", Read(("healthy", "ill"), 6), _beside(".csv", "old,new", "normal,healthy", "sick,ill"),
           rename_classes="{folder}.csv"),
    mended("renamed_to_one", Read(("lungs",), 6), _beside(".csv", "old,new", "normal,lungs", "sick,lungs"),
           rename_classes="{folder}.csv"),
    mended("renamed_in_part", Refused("does not rename every class"), _beside(".csv", "old,new", "normal,healthy"),
           rename_classes="{folder}.csv"),
    *(mended(f"renamed_{name}", Read(("healthy", "ill"), 6), _saved(".csv", text, encoding),
             rename_classes="{folder}.csv")
      for name, text, encoding in (
          ("by_excel", "old;new\r\nnormal;healthy\r\nsick;ill\r\n\r\n", "utf-8-sig"),
          ("as_unicode_text", "old\tnew\r\nnormal\thealthy\r\nsick\till\r\n", "utf-16"),
          ("with_quotes", 'sep=,\r"Old","New"\r"normal","healthy"\r"sick","ill"\r', "utf-16-le"))),
    mended("classes_of_notepad", Read(("sick", "normal"), 6), _saved(".txt", "sick\r\nnormal\r\n", "utf-16"),
           classes="{folder}.txt"),
    mended("classes_in_a_file", Read(("sick", "normal", "rare"), 6), _beside(".txt", "sick", "normal", "rare"),
           classes="{folder}.txt"),
)  # fmt: skip
