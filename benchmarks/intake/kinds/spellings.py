"""Other ways of writing the same: ids of nobody, names of people and of parts, missing labels, columns of people."""

from __future__ import annotations

from benchmarks.intake.inputs import Asked, Input, Read, Refused, numbered
from benchmarks.intake.kinds.meaning import PAIR, filled, folder
from benchmarks.intake.kinds.meaning import table as of_ids
from benchmarks.intake.kinds.tables import COUNT, WORDS, alternating, given, table

NOBODY = {
    "zeros": "00000000", "nines": "99999999", "unknown_numbered": "unknown01", "anonymous_twice": "Anon^Anon",
    "null_in_brackets": "(null)", "not_available": "not available", "unknown_patient": "unknown patient",
    "error_of_excel": "#REF!", "null_of_mysql": "\\N", "minus_one": "-1", "crosses": "xxx", "to_be_done": "TBD",
    "german": "nicht bekannt", "no_id": "no id", "dummy": "dummy",
}  # fmt: skip
ALIKE = {
    "marks": ("P-1", "P 1", "P_1", "P2"), "carets": ("DOE^JANE", "Doe^Jane^", "P1", "P2"), "sign": ("12", "+12", "13"),
}  # fmt: skip
DISTINCT = {
    "pseudonyms": ("anon0001", "anon0002", "anon0003"), "counted_from_zero": ("00000000", "00000001", "00000002"),
    "zero": ("0", "1", "2"),
}  # fmt: skip
PEOPLE = {
    "short_years": ("23.04.61", "31.12.55"), "years_first": ("61-04-23", "55-12-31"),
    "months_by_name": ("Apr 3 1961", "Dec 31 1955"), "months": ("1961.04", "1955.12"),
    "initials": ("K. Meier", "P. Weber"), "doctors": ("Dr Meier", "Dr Weber"), "ages": ("F_45y", "M_62y"),
    "hashes": ("a3f9c2d1", "b7e812aa"), "persons_of_a_trial": ("VP01", "VP02"),
}  # fmt: skip
CODES = {
    "controls": ("HC_01", "MS_01"), "beds": ("A-1234", "A-1235"),
    "users": ("u1024", "u1025"), "domains": ("trainA", "trainB"), "clinics": ("hospital_A", "hospital_B"),
    "unnamed": ("New folder", "New folder (2)"), "copied": ("normal", "sick", "sick - Copy"),
    "predictions": ("no", "pred", "yes"),
}  # fmt: skip
CLASSES = {
    "stages": ("stage1", "stage2"), "birads": ("BIRADS1", "BIRADS2"), "imagenet": ("n01443537", "n01629819"),
    "dimensions": ("2D", "3D"), "species": ("E. coli", "S. aureus"), "retinopathy": ("DR 1", "DR 2"),
}  # fmt: skip
MISSING = {
    "points": "N.A.", "null_of_mysql": "\\N", "dot": ".", "dash": "\u2014", "missing": "missing",
    "unlabelled": "unlabelled", "null_in_brackets": "(null)", "no_label": "no label", "empty_list": "[]",
}  # fmt: skip
COLUMNS = ("pat_id", "MRN", "case_id", "participant_id", "ID_patient", "Patientennummer", "Patient Name", "donor_id")
NO_COLUMNS = ("Patient Age", "Patient Gender", "StudyID", "case")


def of_labels(name: str, word: str) -> Input:
    """A table in which one image in three has this word for a label."""
    line = table("file,label", "{file},{label}", alternating("normal", word, "sick"))
    return given(f"label_{name}", line, Asked("--skip-unlabelled"))


def of_column(name: str, column: str, expected: Read | Refused) -> Input:
    """A table with one more column, of people."""
    return given(name, table(f"file,label,{column}", "{file},{label},{subject}"), expected)


INPUTS = (
    *(of_ids(f"nobody_{name}", Refused("for nobody"), ("P1", "P2", "P3", word)) for name, word in NOBODY.items()),
    *(of_ids(f"alike_{name}", Asked("--join-subjects"), ids) for name, ids in ALIKE.items()),
    *(of_ids(f"distinct_{name}", Read(PAIR, 2 * len(ids), len(ids)), ids) for name, ids in DISTINCT.items()),
    of_ids("apostrophe_of_excel", Refused("quotation mark"), ("12", "'12", "13")),
    of_ids("one_subject_alone", Read(PAIR, 2, 1, said="One subject"), ("P1",)),
    *(folder(f"names_of_{name}", Asked("--rename-classes"), filled(*tops)) for name, tops in PEOPLE.items()),
    *(folder(f"codes_of_{name}", Asked("--classes"), filled(*tops)) for name, tops in CODES.items()),
    *(folder(f"classes_of_{name}", Read(tops, 6), filled(*tops)) for name, tops in CLASSES.items()),
    *(of_labels(name, word) for name, word in MISSING.items()),
    *(of_column(f"column_of_people_{number}", column, Refused("says whose")) for number, column in enumerate(COLUMNS)),
    *(of_column(f"column_of_others_{number}", column, Read(WORDS, COUNT)) for number, column in enumerate(NO_COLUMNS)),
    folder("kinds_in_classes", Asked("--split", "images"), filled("a/images", "a/masks", "b/images", "b/masks")),
    folder("kinds_in_classes_chosen", Read(("a", "b"), 6, said="not masks"),
           filled("a/images", "a/masks", "b/images", "b/masks"), split="images"),
    folder("one_kind_in_classes", Read(("a", "b"), 6, said="images/ of every class"), filled("a/images", "b/images")),
    folder("parts_with_a_word_before", Read(("sea", "wood"), 6, said="not seg_test"),
           filled("seg_train/seg_train/sea", "seg_train/seg_train/wood", "seg_test/seg_test/sea")),
    folder("parts_with_a_word_behind", Read(("a", "b"), 6, said="not test_images_png"),
           filled("train_images_png/a", "train_images_png/b", "test_images_png/a")),
    folder("labelled_and_not", Asked("--split"), [*filled("labelled/a", "labelled/b"), *numbered("unlabelled", 3)]),
    folder("sites_of_classes", Asked("--split"), filled("siteA/a", "siteA/b", "siteB/a", "siteB/b")),
    folder("people_first_by_modality", Refused("seem to be the people"), filled("Meier/DX", "Schulz/CT", "Kraus/CT"),
           "subject"),
    folder("people_in_numbers_of_files", Read(("CNV", "DME"), 12, said="named after persons"),
           [f"{name}/{name}-{1016042 + n // 3}-{n % 3}.png" for name in ("CNV", "DME") for n in range(6)]),
)  # fmt: skip
