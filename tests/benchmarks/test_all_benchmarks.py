"""`make bench`: every benchmark is in it, its arguments are known, and the others run where one fails."""

import ast
import importlib
from pathlib import Path

import pytest

import benchmarks.__main__ as everything
from benchmarks.__main__ import RUNS, command, main

FOLDER = Path(everything.__file__).parent


def programs() -> set[str]:
    """What `python -m benchmarks.NAME` can run; everything else in the folder is shared by them."""
    runnable = (file for file in FOLDER.rglob("*.py") if '__name__ == "__main__"' in file.read_text("utf-8"))
    names = {".".join(file.relative_to(FOLDER).with_suffix("").parts) for file in runnable}
    return {name.removesuffix(".__main__") for name in names} - {"__main__"}


def test_every_program_of_the_folder_is_in_the_list():
    assert set(RUNS) == programs()


def imports(file: Path) -> set[str]:
    """The parts of this folder that a file imports, by the first name below it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "benchmarks":
            below = str(node.module).split(".")[1:2]
            found |= set(below or (name.name for name in node.names))
    return found


def test_the_services_benchmarks_do_not_import_the_papers():
    for file in FOLDER.rglob("*.py"):
        assert "reproductions" in file.parts or "reproductions" not in imports(file), file


@pytest.mark.parametrize("budget", ["quick", "full"])
@pytest.mark.parametrize("name", list(RUNS))
def test_its_arguments_are_known(name, budget, tmp_path):
    """What stands before --help is read first: an option that is not known would end otherwise."""
    package = (FOLDER / name.replace(".", "/")).is_dir()
    module = importlib.import_module(f"benchmarks.{name}" + (".__main__" if package else ""))
    with pytest.raises(SystemExit) as ended:
        module.main([*command(name, budget, tmp_path)[3:], "--help"])
    assert ended.value.code == 0


def test_failures_and_timeouts_are_reported_and_the_others_run(monkeypatch, tmp_path, capfd):
    programs = {"crowd": ["false"], "api": ["sleep", "60"], "accounting": ["echo", "a table"]}
    monkeypatch.setattr(everything, "command", lambda name, *_: programs[name])
    given = ["--folder", str(tmp_path / "new"), "--minutes", "0.02", "--only"]
    assert main([*given, *programs]) == 1
    said = capfd.readouterr().out
    assert "a table" in said
    assert said.endswith("1 of 3 benchmarks succeeded\n  crowd: exit status 1\n  api: stopped after 0.02 minutes\n")
    assert main([*given, "accounting"]) == 0
