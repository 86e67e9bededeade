"""Every failpoint is in the code once, and a test kills a process there."""

import ast
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from service.failpoints import NAMES, VARIABLE

ROOT = Path(__file__).resolve().parents[2]


def places_in(code: str) -> list[str]:
    """Return the failpoints in code, with the two around the commit of an attempt's `end`."""
    ends = [f"{name}.{side}" for name in re.findall(r'\bat="([a-z]+)"', code) for side in ("before", "after")]
    return re.findall(r'^ *failpoint\("([^"]+)"\)', code, flags=re.MULTILINE) + ends


def test_every_place_stands_in_the_code_once():
    found = Counter(
        name
        for folder in ("service", "workers")
        for path in (ROOT / folder).rglob("*.py")
        for name in places_in(path.read_text("utf-8"))
    )
    assert found == dict.fromkeys(NAMES, 1)


def test_a_process_is_killed_at_every_place():
    """The test modules beside this one pass them to `die_at`."""
    texts = {
        node.value.partition("@")[0]
        for path in Path(__file__).parent.glob("test_*_crashes.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(NAMES) - texts == set()


def test_the_document_names_every_place():
    text = (ROOT / "docs" / "contribute" / "architecture.md").read_text("utf-8")
    assert {name for name in NAMES if f"`{name}`" not in text} == set()


@pytest.mark.parametrize(
    ("value", "passes", "dies"),
    [
        ("", 5, False),
        ("arm.after:kill", 1, True),
        ("arm.before:kill", 5, False),
        ("arm.after:kill@3", 2, False),
        ("arm.after:kill@3", 3, True),
    ],
)
def test_a_process_dies_at_the_named_place_and_time_and_nowhere_else(value, passes, dies):
    code = f"from service.failpoints import failpoint\nfor _ in range({passes}): failpoint('arm.after')"
    assert run(code, value).returncode == (-signal.SIGKILL if dies else 0)


def test_once_means_once_however_many_processes_pass(tmp_path):
    code = "from service.failpoints import failpoint; failpoint('arm.after')"
    value = f"arm.after:kill;once={tmp_path / 'died'}"
    assert [run(code, value).returncode for _ in range(3)] == [-signal.SIGKILL, 0, 0]


@pytest.mark.parametrize("value", ["arm.after", "arm.after:stop", "nowhere.after:kill", "arm.after:kill@0"])
def test_a_value_that_cannot_be_understood_is_no_survived_crash(value):
    ended = run("import service.failpoints", value)
    assert ended.returncode == 1
    assert VARIABLE in ended.stderr


def run(code: str, value: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, VARIABLE: value, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
