"""`make bench`: every benchmark is in it, its arguments are known, and the others run where one fails."""

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as everything
from benchmarks.__main__ import RUNS, command, run

FOLDER = Path(everything.__file__).parent


def programs() -> set[str]:
    """What `python -m benchmarks.NAME` can run; everything else in the folder is shared by them."""
    runnable = (file for file in FOLDER.rglob("*.py") if '__name__ == "__main__"' in file.read_text("utf-8"))
    names = {".".join(file.relative_to(FOLDER).with_suffix("").parts) for file in runnable}
    return {name.removesuffix(".__main__") for name in names} - {"__main__"}


def test_every_program_of_the_folder_is_in_the_list() -> None:
    assert set(RUNS) == programs()


def imports(file: Path) -> set[str]:
    """The parts of this folder that a file imports, by the first name below it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "benchmarks":
            below = str(node.module).split(".")[1:2]
            found |= set(below or (name.name for name in node.names))
    return found


def test_the_services_benchmarks_do_not_import_the_papers() -> None:
    for file in FOLDER.rglob("*.py"):
        assert "reproductions" in file.parts or "reproductions" not in imports(file), file


@pytest.mark.parametrize("budget", ["quick", "full"])
@pytest.mark.parametrize("name", list(RUNS))
def test_its_arguments_are_known(name: str, budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands before --help is read first: an option that is not known would end otherwise."""
    package = (FOLDER / name.replace(".", "/")).is_dir()
    module = importlib.import_module(f"benchmarks.{name}" + (".__main__" if package else ""))
    monkeypatch.setattr(sys, "argv", [*command(name, budget, tmp_path)[2:], "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0


def test_failures_and_timeouts_are_reported_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    programs = {"fails": "raise SystemExit(3)", "hangs": "import time; time.sleep(60)", "works": "print('a table')"}

    def line(name: str, _budget: str, _folder: Path) -> list[str]:
        return [sys.executable, "-c", programs[name]]

    monkeypatch.setattr(everything, "command", line)
    ended = run(list(programs), "quick", tmp_path / "new", minutes=0.05)
    assert ended == {"fails": "exit status 3", "hangs": "stopped after 0.05 minutes", "works": ""}
    assert "a table" in capfd.readouterr().out


def test_the_exit_status_says_whether_all_ended_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def ran(names: list[str], *given: Any) -> dict[str, str]:
        asked.append((names, *given))
        return dict.fromkeys(names, "") | {"crowd": "exit status 1"} if "crowd" in names else dict.fromkeys(names, "")

    monkeypatch.setattr(everything, "run", ran)
    for only, status in ((["accounting"], 0), (["accounting", "crowd"], 1)):
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--folder", str(tmp_path), "--only", *only])
        assert everything.main() == status
    assert asked[0] == (["accounting"], "quick", tmp_path, 30.0)
    assert "1 of 2 benchmarks succeeded\n  crowd: exit status 1" in capsys.readouterr().out
