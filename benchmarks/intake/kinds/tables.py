"""Folders whose classes stand in a table, in the forms in which collections and spreadsheets write it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.intake.inputs import Asked, Input, Outcome, Read, Refused, numbered, put

COUNT = 12
WORDS = ("normal", "sick")
BOTH = Read(WORDS, COUNT)
Build = Callable[[Path, np.random.Generator], None]


def alternating(*names: str) -> list[str]:
    """The label of each image."""
    return [names[number % len(names)] for number in range(COUNT)]


def table(
    head: str,
    line: str,
    labels: Sequence[str] = alternating(*WORDS),
    *,
    file: str = "labels.csv",
    folder: str = "",
    encoding: str = "utf-8",
) -> Build:
    """Images 000.png, 001.png, ... and a table of which `line` makes a line of `n`, `file`, `label` and `subject`."""

    def build(place: Path, rng: np.random.Generator) -> None:
        put(place, rng, *numbered(folder, COUNT))
        lines = [
            line.format(n=n, stem=f"{n:03d}", file=f"{n:03d}.png", label=label, subject=f"P{n // 2}", other=n % 3 // 2)
            for n, label in enumerate(labels)
        ]
        (place / file).write_bytes("\n".join([*([head] if head else []), *lines, ""]).encode(encoding))

    return build


def given(name: str, build: Build, expected: Outcome, labels: str = "labels.csv", **more: Any) -> Input:
    """An input that is pushed with its table."""
    options = {"labels": labels, **more.pop("options", {})}
    return Input(name, build, expected, options=options, **more)


def _json_lines(place: Path, rng: np.random.Generator) -> None:
    put(place, rng, *numbered("", COUNT))
    lines = [json.dumps({"file_name": f"{n:03d}.png", "label": WORDS[n % 2], "age": 40}) for n in range(COUNT)]
    (place / "labels.jsonl").write_text("\n".join(lines), "utf-8")


def _parts(place: Path, rng: np.random.Generator) -> None:
    """HAM10000: images in two folders, named in the table without folder and ending."""
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
    """Images of two parts under the same names, and the labels of one of them."""
    put(place, rng, *numbered("train", COUNT), *numbered("test", COUNT))
    lines = [f"{n:03d},{n % 2}" for n in range(COUNT)]
    (place / "train.csv").write_text("\n".join(["image,label", *lines]))


def _gzipped(place: Path, rng: np.random.Generator) -> None:
    table("file,label", "{file},{label}")(place, rng)
    (place / "labels.csv.gz").write_bytes(gzip.compress((place / "labels.csv").read_bytes()))


def _accents(place: Path, rng: np.random.Generator) -> None:
    """Names as macOS stores them, in a table that was written elsewhere."""
    put(place, rng, *(f"La\u0308sion {n}.png" for n in range(COUNT)))
    lines = [f"L\u00e4sion {n}.png,{WORDS[n % 2]}" for n in range(COUNT)]
    (place / "labels.csv").write_text("\n".join(["file,label", *lines]), "utf-8")


def _dead(place: Path, rng: np.random.Generator) -> None:
    table("file,label", "{file},{label}")(place, rng)
    (place / "003.png").unlink()


def _parts_below(place: Path, rng: np.random.Generator) -> None:
    """A table above train/ and test/, whose rows name images of both."""
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


def several(name: str, label: str) -> Input:
    """A table in which every third cell holds two labels."""
    return given(
        f"cells_with_{name}",
        table("file,label", "{file},{label}", alternating("COVID-19", "Effusion", f'"{label}"')),
        Asked("--attribute", "several labels"),
    )


def shared(name: str, head: str, line: str) -> Input:
    """A table of records with a column whose values several images share."""
    return given(f"shared_{name}", table(head, line), Read(WORDS, COUNT, said="seem to be of one person"))


CHEXPERT = table(
    "Path,Sex,No Finding,Edema,Pneumonia", "{file},F,{label},{other}.0,-1.0", labels=alternating("1.0", "0.0")
)
ONE_HOT = table("image,MEL,NV,BCC", "{stem},{label}", labels=alternating("1,0,0", "0,1,0", "0,0,1"))
NIH = table(
    "Image Index,Finding Labels,Follow-up #,Patient ID",
    "{file},{label},0,{subject}",
    labels=alternating("No Finding", "Effusion|Mass", "Effusion"),
)
BARS = table(
    "Image Index,Finding Labels", "{file},{label}", labels=alternating("No Finding", "Effusion|Mass", "Effusion")
)

INPUTS = (
    given("kaggle_layout_stated", _kaggle, Read(("0", "1"), COUNT, said="train/, labels from train.csv"), "train.csv"),
    given("csv_split_column", table("file,label,split", "{file},{label},part{other}"),
        Read(WORDS, 4, said="part1, labels"), options={"split": "part1"}),
    given("csv_without_parts", table("file,label", "{file},{label}"), Refused("leave --split out"),
        options={"split": "test"}),
    given("csv_plain", table("file,label", "{file},{label}"), BOTH),
    given("csv_semicolon", table("file;label", "{file};{label}"), BOTH),
    given("csv_tabs", table("file\tlabel", "{file}\t{label}", file="labels.tsv"), BOTH, "labels.tsv"),
    given("csv_bars", table("file|label", "{file}|{label}"), BOTH),
    given("csv_spaces_around", table("file, label", "{file} , {label} "), BOTH),
    given("csv_byte_order_mark", table("file,label", "{file},{label}", encoding="utf-8-sig"), BOTH),
    given("csv_utf16", table("file,label", "{file},{label}", encoding="utf-16"), BOTH),
    given("csv_utf16_without_mark", table("file,label", "{file},{label}", encoding="utf-16-le"), BOTH),
    given("csv_latin1", table("file,label", "{file},{label}", alternating("unauffällig", "krank"), encoding="latin-1"),
        Asked("--table-encoding", "unauffällig")),
    given("csv_latin1_stated",
        table("file,label", "{file},{label}", alternating("unauffällig", "krank"), encoding="latin-1"),
        Read(("krank", "unauffällig"), COUNT), options={"table_encoding": "latin-1"}),
    given("csv_quoted_commas",
        table("file,label,note", '{file},{label},"seen, twice"', alternating('"mass, right"', "none seen")),
        Read(("mass, right", "none seen"), COUNT)),
    given("csv_unquoted_comma", table("file,label", "{file},{label}, seen twice"), Refused("quotation marks")),
    given("csv_extra_columns", table(",file,age,label", "{n},{file},44,{label}"), BOTH),
    given("csv_hf_metadata", table("file_name,label", "{file},{label}"), BOTH),
    given("csv_image_class", table("image,class", "{stem},{label}"), BOTH),
    given("csv_id_code", table("id_code,diagnosis", "{stem},{label}"), BOTH),
    given("csv_windows_paths", table("path,label", "C:\\Users\\x\\scans\\{file},{label}"), BOTH),
    given("csv_paths_of_another_machine",
        table("path,label", "/home/x/scans/images/{file},{label}", folder="images"), BOTH),
    given("csv_in_folders", table("filename,label", "{file},{label}", folder="images_001/images"), BOTH),
    given("csv_ham10000", _parts, Read(("mel", "nv"), COUNT), "HAM10000_metadata.csv"),
    given("jsonl", _json_lines, BOTH, "labels.jsonl"),
    given("csv_unknown_columns", table("image,finding_code,age", "{file},{label},44"),
        Asked("--label-column", "finding_code")),
    given("csv_unknown_columns_stated", table("image,finding_code,age", "{file},{label},44"), BOTH,
        options={"file_column": "image", "label_column": "finding_code"}),
    given("csv_two_label_columns", table("file,label,diagnosis", "{file},{n},{label}"),
        Asked("--label-column", "diagnosis")),
    given("csv_no_such_column", table("file,label", "{file},{label}"), Refused("file, label"),
        options={"label_column": "dx"}),
    given("txt_without_names", table("", "{file} {label}", file="train.txt"), Asked("--label-column", "1 to 2"),
        "train.txt"),
    given("txt_without_names_stated", table("", "{file} {label}", file="train.txt"), BOTH, "train.txt",
        options={"file_column": "1", "label_column": "2"}),
    given("csv_chexpert", CHEXPERT, Asked("--attribute", "Edema")),
    given("csv_chexpert_attribute", CHEXPERT, Read(("not No Finding", "No Finding"), COUNT),
        options={"attribute": "No Finding"}),
    given("csv_chexpert_unsure", CHEXPERT, Asked("--skip-unlabelled"), options={"attribute": "Pneumonia"}),
    given("csv_one_hot", ONE_HOT, Asked("--attribute", "MEL")),
    given("csv_one_hot_attributes", ONE_HOT, Read(("MEL", "NV", "BCC"), COUNT), options={"attribute": "MEL,NV,BCC"}),
    given("csv_one_hot_combinations", ONE_HOT, Read(("BCC", "MEL", "NV"), COUNT), options={"combinations": True}),
    given("csv_nih_subjects", NIH, Read(("not Effusion", "Effusion"), COUNT, 6), unit="subject",
        options={"attribute": "Effusion"}),
    given("csv_nih_several_labels", BARS, Asked("--attribute", "--combinations")),
    given("csv_nih_combinations", BARS, Read(("Effusion", "Effusion|Mass", "No Finding"), COUNT),
        options={"combinations": True}),
    given("csv_patient_column", table("file,label,patient_id", "{file},{label},{subject}"), Read(WORDS, COUNT, 6),
        unit="subject"),
    given("csv_subject_column_stated", table("file,label,mrn", "{file},{label},{subject}"), Read(WORDS, COUNT, 6),
        unit="subject", options={"subject_column": "mrn"}),
    given("csv_without_subjects", table("file,label", "{file},{label}"), Asked("--subject-column"), unit="subject"),
    given("csv_label_missing_nan", table("file,label", "{file},{label}", alternating("normal", "nan", "sick")),
        Asked("--skip-unlabelled")),
    given("csv_label_missing_skipped", table("file,label", "{file},{label}", alternating("normal", "", "sick")),
        Read(WORDS, 8, said="4 images without a label"), options={"skip_unlabelled": True}),
    given("csv_two_things", table("file,label", "000.png,{label}"), Asked("--attribute", "several labels")),
    given("csv_same_stem", _same_stem, Refused("may be any of")),
    given("csv_dead_row", _dead, Asked("--skip-broken", "003.png")),
    given("csv_dead_row_skipped", _dead, Read(WORDS, COUNT - 1), options={"skip_broken": True}),
    given("xlsx", table("PK\x03\x04", "{file}", file="labels.xlsx"), Refused("save the sheet"), "labels.xlsx"),
    given("csv_label_case", table("file,label", "{file},{label}", alternating("normal", "Normal ", "sick")),
        Asked("--classes")),
    given("csv_label_12_and_1", table("file,label", "{file},{label}", alternating("1", "1.0", "2")),
        Asked("--classes")),
    given("csv_chexpert_paths_subjects", _chexpert, Read(("not No Finding", "No Finding"), COUNT, 6), "train.csv",
        unit="subject", options={"attribute": "No Finding"}),
    given("csv_chexpert_paths", _chexpert, Refused("subject"), "train.csv", options={"attribute": "No Finding"}),
    given("csv_nih", NIH, Refused("says whose")),
    Input("kaggle_layout", _kaggle, Asked("--labels", "train.csv")),
    Input("images_and_a_table", table("file,label", "{file},{label}"), Asked("--labels", "labels.csv")),
    given("csv_of_excel", table("sep=;\nfile;label", "{file};{label}"), BOTH),
    given("csv_gzipped", _gzipped, BOTH, "labels.csv.gz"),
    given("csv_utf32", table("file,label", "{file},{label}", encoding="utf-32"), BOTH),
    given("csv_accents_in_two_forms", _accents, BOTH),
    given("csv_rsna", table("patientId,Target", "{stem},{other}"), Read(("0", "1"), COUNT)),
    given("csv_rsna_boxes", table("patientId,x,y,width,height,Target", "{stem},,,,,{other}"),
        Read(("0", "1"), COUNT, COUNT), unit="subject"),
    given("csv_padchest", table("ImageID,Labels", "{file},\"['{label}', 'old']\""),
        Asked("--attribute", "several labels")),
    *(
        several(name, label)
        for name, label in {
            "a_comma": "COVID-19, Effusion",
            "a_semicolon": "COVID-19;Effusion",
            "a_slash": "COVID-19/Effusion",
            "a_plus": "COVID-19 + Effusion",
            "an_and": "COVID-19 and Effusion",
            "a_line_break": "COVID-19\nEffusion",
            "a_space": "COVID-19 Effusion",
        }.items()
    ),
    given("cells_with_a_comma_attribute",
        table("file,label", "{file},{label}", alternating("Mass", "Effusion", '"Mass, Effusion"')),
        Read(("not Mass", "Mass"), COUNT), options={"attribute": "Mass"}),
    given("cells_with_a_comma_combinations",
        table("file,label", "{file},{label}", alternating("Mass", "Effusion", '"Mass, Effusion"')),
        Read(("Effusion", "Effusion|Mass", "Mass"), COUNT), options={"combinations": True}),
    given("names_without_zeros", table("image,label", "{n},{label}"), Refused("a spreadsheet")),
    given("names_with_decimals", table("image,label", "{n}.0,{label}"), Refused("a spreadsheet")),
    given("names_with_another_ending", table("file,label", "{stem}.jpg,{label}"), Refused("endings differ")),
    given("names_of_another_folder", table("file,label", "a/{file},{label}", folder="b"), Refused("folders differ")),
    given("names_of_other_files", table("file,label", "x{stem},{label}"), Refused("No name in column 'file'")),
    given("column_that_names_images", table("a,b,label", "{n},{file},{label}"), BOTH),
    Input("metadata_above_parts", _parts_below, Read(WORDS, COUNT, said="not test/")),
    Input("metadata_above_parts_chosen", _parts_below, Read(WORDS, COUNT, said="test/"), options={"split": "test"}),
    Input("arrays_in_a_folder", _arrays("A.NPZ"), Refused("Push each .npz by itself")),
    shared("lesion", "file,label,lesion_id", "{file},{label},{subject}"),
    shared("study", "file,label,StudyInstanceUID", "{file},{label},1.2.{subject}"),
    shared("scan", "file,label,scan", "{file},{label},{subject}"),
)  # fmt: skip
