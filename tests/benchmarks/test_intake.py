"""Every input of the intake benchmark is read, asked about or refused as it says, before any service is involved."""

import json
from pathlib import Path

import pytest

from benchmarks.intake import __main__ as intake
from benchmarks.intake.inputs import Asked, Input, Read, Refused, all_inputs
from benchmarks.intake.ways import Got, fault, images_of, shown
from obscura.errors import ObscuraClientError
from obscura.preparing import ChoiceNeeded, Choices, prepare

EVERY = all_inputs()


UNITS = {"record": False, "subject": True, "public": None}


def prepared(given: Input, folder: Path) -> Got:
    place = given.write(folder)
    push_options = {name: value for name, value in given.arguments(folder).items() if not name.endswith("at_most")}
    try:
        package = prepare(place, Choices(**push_options), subjects=UNITS[given.unit])
        sent = images_of(package)
    except ObscuraClientError as error:
        flags = error.flags if isinstance(error, ChoiceNeeded) else ()
        return Got("asked" if flags else "refused", str(error.args[0]), flags)  # names flags
    counts = package.private_records, package.private_subjects
    assert len(sent) == package.private_records
    return Got("read", " ".join((package.summary, *package.private_notes)), (), package.classes, *counts, images=sent)


@pytest.mark.parametrize("given", EVERY, ids=[given.name for given in EVERY])
def test_an_input_is_what_it_says(given, tmp_path):
    got = prepared(given, tmp_path)
    assert fault(given.expected, got) == "", (shown(given.expected), got.shown())


def test_each_input_has_a_name_of_its_own():
    assert len({given.name for given in EVERY}) == len(EVERY)


@pytest.mark.parametrize(
    ("expected", "got", "wrong"),
    [
        (Read(("a",), 2), Got("read", classes=("a",), records=2), ""),
        (Read(("a",), 2), Got("read", classes=("a",), records=3), "records are 3"),
        (Read(("a",), 2, said="cut"), Got("read", classes=("a",), records=2), "'cut' is not said"),
        (Read(("a",), 2, looks=lambda _: "dark"), Got("read", classes=("a",), records=2, images=[]), "dark"),
        (Read(("a",), 2), Got("failed"), "failed instead of read"),
        (Asked("--size"), Got("asked", flags=("--size 64",)), ""),
        (Asked("--size"), Got("asked", flags=("--fit",)), "--size is not named"),
        (Asked("--size"), Got("asked", flags=("--size 64",), declared=1), "it was declared before"),
        (Asked("--size"), Got("refused"), "refused instead of asked"),
        (Refused("damaged"), Got("refused", "It is damaged."), ""),
        (Refused("damaged"), Got("read"), "read instead of refused"),
    ],
)
def test_what_is_not_as_expected_is_told(expected, got, wrong):
    assert fault(expected, got) == wrong


def test_flags_follow_from_the_arguments(tmp_path):
    given = Input("x", "", {}, Refused(""), unit="subject", options={"labels": "{folder}/a.csv", "grey": True})
    table = str(tmp_path / "x" / "a.csv")
    assert given.flags(tmp_path) == ["--at-most", "1000", "--subjects-at-most", "500", "--labels", table, "--grey"]


@pytest.mark.slow
def test_inputs_go_to_a_service_by_sdk_and_command_line(tmp_path):
    chosen = ["csv_semicolon", "npz_labels_float", "csv_unknown_columns"]
    file = tmp_path / "rows.json"
    assert intake.main(["--json", str(file), "--ways", "sdk", "cli", "--only", *chosen]) == 0
    found = json.loads(file.read_text("utf-8"))
    assert found["inputs"] == len(chosen)
    assert found["rows_by_way"] == {"sdk": len(chosen), "cli": len(chosen)}
    assert {row["got"].partition(":")[0] for row in found["rows"]} == {"read", "asked", "refused"}
    assert (found["tracebacks"], found["declared_before_a_question"], found["not_as_expected"]) == (0, 0, 0)
