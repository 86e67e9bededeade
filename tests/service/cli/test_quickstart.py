"""`obscura quickstart` and the demo: what they show, where images are found, and steps that fail."""

import gzip
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models.public_images import FASHION_CLASSES
from obscura.cli import quickstart
from obscura.cli.console import CliError, Output
from obscura.cli.quickstart import drowned_here, fewer_here
from scripts.quickstart_transcript import PAGE, PROGRAM, SCANS_PAGE, SHOWN, run_command, run_program, run_scans
from service.cli import demo
from service.cli.demo import DEBIAN_FOLDER, find_images, is_fashion_mnist, run_demo
from tests.pictures import write_folders
from tests.service.cli.conftest import Shell, Terminal

Start = Callable[..., str]
IDS = re.compile(r"\b(job|rel)_[a-z2-7]{20}\b")
MEND = "run python -m scripts.quickstart_transcript"


@pytest.mark.slow
@pytest.mark.usefixtures("warm_starts")
def test_the_page_shows_what_happens(tmp_path):
    shown, _ = SHOWN.findall(PAGE.read_text("utf-8"))
    assert IDS.sub("ID", run_command(tmp_path)) == IDS.sub("ID", shown), MEND
    assert len(list((tmp_path / "synthetic").glob("[0-9]/*.png"))) == 1000
    assert (tmp_path / "synthetic" / "grid.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "var" / "service.url").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("warm_starts")
def test_dicom_files_become_images_of_a_subject_account_in_one_command(tmp_path):
    (shown,) = SHOWN.findall(SCANS_PAGE.read_text("utf-8"))
    said = run_scans(tmp_path)
    assert IDS.sub("ID", said) == IDS.sub("ID", shown), MEND
    error, again = next(re.finditer(r"\nerror: (.*)\n(\$ .*)\n", said)).groups()
    assert set(re.findall(r"--[\w-]+", again)) <= {"--yes", "--grey", *re.findall(r"--[\w-]+", error)}
    assert len(list((tmp_path / "synthetic").glob("*/*.png"))) == 1000
    kept = [path.read_bytes() for path in (tmp_path / "var").rglob("*") if path.is_file()]
    assert len(kept) > 3
    assert not any(word in content for content in kept for word in (b"PATIENT0", b"Doe^Jane"))


@pytest.mark.slow
@pytest.mark.usefixtures("warm_starts")
def test_the_page_shows_what_six_lines_of_python_do(tmp_path):
    _, shown = SHOWN.findall(PAGE.read_text("utf-8"))
    (program,) = PROGRAM.findall(PAGE.read_text("utf-8"))
    assert len([line for line in program.splitlines() if line]) == 6
    assert run_program(tmp_path) == shown, MEND
    assert len(list((tmp_path / "synthetic").glob("[0-9]/*.png"))) == 1000
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return write_folders(tmp_path / "pets", {"cat": 20, "dog": 20})


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Run the command in this process, in the test's folder; at a terminal where there are answers."""
    monkeypatch.chdir(tmp_path)

    def start(*arguments: object, code: int, before: tuple[str, ...] = (), answers: str | Terminal = "") -> str:
        return Shell(Path("var"))(*before, "quickstart", *map(str, arguments), code=code, input=answers).err

    return start


def test_what_can_be_known_before_is_said_before(start, pets, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    for unlimited in ((pets, "--yes"), (pets,)):  # nobody is at the terminal
        assert "round number above what you will ever have" in start(*unlimited, code=2)
    assert "repeat the command with --yes" in start(pets, "--at-most", "100", code=2)
    assert "more images than you stated" in start(pets, "--yes", "--at-most", "39", code=2)
    assert "choose another place" in start(pets, "--yes", "--at-most", "100", "--out", pets, code=1)
    assert "--labels labels.csv" in start(pets / "cat", "--yes", "--at-most", "100", code=2)
    away = ("--url", "http://127.0.0.1:1", "--token", "none")
    assert "No service answers at http://127.0.0.1:1" in start(pets, "--yes", "--at-most", "100", before=away, code=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_step_that_fails_leaves_nothing_half_done(start, pets, target, client, monkeypatch):
    before, tried = list(client.datasets.list()), list[dict[str, Any]]()
    monkeypatch.setattr(quickstart, "try_first", lambda *_, **order: tried.append(order))
    small = ("--size", "8", "--grey")
    declined = start(pets, *small, before=target, answers=Terminal("100\nn\n"), code=1)
    assert 'thereby making public: classes "cat", "dog";' in declined
    assert "Nothing was declared or uploaded." in declined
    assert "Planning" not in declined
    declined = start(pets, *small, before=target, answers=Terminal("100\ny\nn\n"), code=1)
    assert "No recognisable images can be expected. Train anyway?" in declined
    assert "records at this epsilon" in declined.splitlines()[-1]
    asked = start(pets, *small, "--yes", "--at-most", "100", before=target, code=2)
    assert "repeat the command with --accept-rough" in asked, "--yes does not answer this question"
    small = (*small, "--accept-rough")
    declined = start(pets, *small, "--preview", before=target, answers=Terminal("100\ny\nn\n"), code=1)
    assert "This spends 1" in declined
    assert "Nothing was uploaded or spent." in declined
    assert tried == [{"recipe": "moments", "epsilon": 1.0, "options": {}}]
    picture = pets / "cat" / "0.png"
    yes = Terminal("y\n", meanwhile=lambda: picture.unlink(missing_ok=True))
    broken = start(pets, *small, "--at-most", "100", before=target, answers=yes, code=2)
    assert len(tried) == 1, "nobody asked for another preview"
    assert "The images changed while they were sent" in broken
    assert f"To continue: obscura quickstart {pets} --epsilon 1 --at-most 100 --accept-rough --size 8 --grey" in broken
    assert list(client.datasets.list()) == before
    (account,) = [account for account in client.accounts.list() if account.name == "pets"]
    assert account.balance.reserved_nano == account.balance.spent_nano == 0
    assert account.balance.limit_epsilon == 3
    asked = start(pets, *small, "--at-most", "100", "-e", "2.9", before=target, answers=Terminal("y\nn\n"), code=1)
    assert "This spends 94" in asked, "of the remaining budget, although the service is elsewhere"
    client.accounts.get(account.id).lower_limit(epsilon=0.5, reason="as if half of it was spent")
    poor = start(pets, "--yes", "--at-most", "2000", "--epsilon", "1", before=target, code=3)
    assert "the training needs epsilon 1.0, and 0.5 is left" in poor
    assert "add --limit 12" in start(pets, "--yes", "--at-most", "2000", "--epsilon", "4", before=target, code=2)
    assert client.accounts.get(account.id).balance.spent_nano == 0
    assert list(client.datasets.list()) == before


@pytest.mark.parametrize(
    ("units", "warned"), [(2000, ""), (1500, ""), (1200, "at best outlines"), (20, "at best noise")]
)
def test_fewer_images_than_the_limit_are_warned_of_on_this_machine_alone(units, warned):
    bands = [(0, "noise"), (10, "outlines"), (400, "shapes")]
    curve = [SimpleNamespace(cost_nano=cost_nano, band=band) for cost_nano, band in bands]
    plan: Any = SimpleNamespace(cost_nano=1000, expectation=SimpleNamespace(band="shapes", curve=curve))
    dataset: Any = SimpleNamespace(records_declared=2000, subjects_declared=None)
    package: Any = SimpleNamespace(private_records=units, private_subjects=None)
    said = " ".join(fewer_here(package, dataset, plan))
    assert bool(said) == bool(warned)
    assert warned in said


@pytest.mark.parametrize(
    ("counts", "shown_from", "said"),
    [
        (
            {"normal": 2000, "sick": 20},
            130,
            ["Stays here: expect static, or images like other classes, for sick (20)", "needs about 130 images"],
        ),
        (
            {f"c{number}": number for number in range(20)},
            100,
            ["for c0 (0), c1 (1), c2 (2), c3 (3), c4 (4) and 15 more"],
        ),
        ({"a": 500, "b": 130}, 130, []),
        ({"a": 1}, None, []),
        ({}, 130, []),
        ({"a": 5}, 0, []),
    ],
)
def test_the_owner_alone_is_told_of_classes_that_are_too_small(counts, shown_from, said):
    lines = list(drowned_here(counts, shown_from))
    assert len(lines) == bool(said)
    assert all(part in lines[0] for part in said)
    assert "normal" not in "".join(lines)


# --- the demo ---------------------------------------------------------------------------------------------------------


TEACHERS = {"teachers": 20, "images": 30}
NUMBERS = ("epsilon", "delta", "capacity", "price", "spent", "teachers", "images_aggregated")


@pytest.mark.slow
@pytest.mark.usefixtures("warm_starts")
def test_the_demo_does_everything_and_may_be_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out, small = tmp_path / "demo", {"evaluation_samples": 300}
    run_demo(out, Output(as_json=True), images="digits", count=100, options=small, teacher_options=TEACHERS)
    shown = capsys.readouterr()
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert json.loads(shown.out) == summary
    assert "/dashboard" in shown.err or "The dashboard is at http://127.0.0.1:" in shown.err
    assert (summary["dataset"], summary["recipe"]) == ("digits", "datalens")
    assert (summary["unit"], summary["adjacency"]) == ("record", "add_remove")
    assert all(summary[name] > 0 for name in NUMBERS)
    assert summary["price"] < summary["spent"] <= summary["capacity"]  # of both trainings
    assert {"setup", "ingest", "first_job", "job", "sample", "evaluation"} == set(summary["seconds"])
    first, taught = summary["runs"]
    assert list(first) == list(taught)
    numbers = ("recipe", "teachers", "images_aggregated", "iterations")
    assert [first[name] for name in numbers] == ["moments", 0, 0, 0]
    assert [taught[name] for name in numbers] == ["datalens", 20, 30, 2]
    assert all(run["epsilon"] == 10 and 0 < run["accuracy"] <= 1 and run["seconds"] > 0 for run in (first, taught))
    assert summary["spent"] < 0.6 * summary["capacity"]
    assert "Expect shapes: most objects are recognisable" in shown.err
    assert "is more than a tenth of 1/n" not in shown.err, "a warning about delta"
    assert set(summary["accuracy"]) == {"logistic_regression", "mlp", "cnn"}
    for name in ("download", "grid", "report", "privacy_card"):
        assert Path(summary[name]).stat().st_size > 0
    with zipfile.ZipFile(summary["download"]) as archive:
        pictures = [name for name in archive.namelist() if name.endswith(".png") and "/" in name]
    assert len(pictures) == 100
    assert not (out / "service" / "service.url").exists()  # it has stopped


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    mine = tmp_path / "service" / "obscura.db"
    mine.parent.mkdir()
    mine.write_bytes(b"precious")
    with pytest.raises(CliError, match="choose another"):
        run_demo(tmp_path, Output(as_json=True), images="digits")
    assert mine.read_bytes() == b"precious"


def test_wrong_files_are_not_taken_for_fashion_mnist(tmp_path):
    assert not is_fashion_mnist(tmp_path)
    for name in demo.CHECKSUMS:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"something else"))
    assert not is_fashion_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"not even gzip")
    assert not is_fashion_mnist(tmp_path)


@pytest.mark.skipif(not is_fashion_mnist(DEBIAN_FOLDER), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_from_this_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("OBSCURA_FASHION_MNIST", raising=False)
    found = find_images(tmp_path, lambda _: None)
    assert found.name == "Fashion-MNIST"
    assert (found.private.private_records, found.public.private_records) == (60_000, 10_000)
    assert found.private.classes == found.public.classes == FASHION_CLASSES


@pytest.mark.usefixtures("warm_starts")
def test_the_digits_are_the_last_resort_and_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("OBSCURA_FASHION_MNIST", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", "")  # no apt-get
    said: list[str] = []
    found = find_images(tmp_path / "cache", said.append, download_seconds_max=0.01)
    assert found.name == "digits"
    assert any("falling back" in sentence for sentence in said)
    assert found.private.private_records + found.public.private_records == 1797
    with np.load(tmp_path / "cache" / "digits" / "digits.npz") as arrays:
        assert arrays["images"].max() == 255


def test_unknown_images_are_refused(tmp_path):
    with pytest.raises(CliError):
        find_images(tmp_path, lambda _: None, "imagenet")
