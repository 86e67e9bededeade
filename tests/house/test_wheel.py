"""A wheel is enough: it holds the migrations, and its client works where nothing of the server is installed."""

import os
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
BUILD = "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"
SOURCES = ("obscura", "service", "workers", "models", "privacy", "alembic")
Run = Callable[..., subprocess.CompletedProcess[str]]


def client_packages() -> set[Path]:
    """Files and folders, directly below site-packages, of all that a plain installation brings."""
    found: set[str] = set()
    waiting = ["obscura"]
    roots: set[Path] = set()
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        distribution = metadata.distribution(name)
        for line in distribution.requires or ():
            child = Requirement(line)
            if child.marker is None or child.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(child.name))
        if name != "obscura":
            tops = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
            roots |= {Path(str(distribution.locate_file(top))) for top in tops}
    return roots


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    built = subprocess.run([sys.executable, "-c", BUILD], cwd=source, capture_output=True, text=True, check=True)
    wheel = source / "dist" / built.stdout.split()[-1]
    venv.create(place / "venv", with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "venv/bin/python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", "--no-compile", str(wheel)], check=True)
    shutil.rmtree(source)
    (place / "client").mkdir()
    for path in client_packages():
        (place / "client" / path.name).symlink_to(path)
    return place


@pytest.fixture
def run(place: Path) -> Run:
    """Run a command of the fresh environment, in an empty folder, beside these packages."""
    (site_packages,) = (place / "venv").glob("lib/python3*/site-packages")

    def run(*arguments: str, beside: Path = place / "client", code: int = 0) -> subprocess.CompletedProcess[str]:
        (site_packages / "others.pth").write_text(f"{beside}\n", "utf-8")
        (place / "empty").mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OBSCURA_", "PYTHONPATH"))}
        command = [str(place / "venv/bin" / arguments[0]), *arguments[1:]]
        ran = subprocess.run(command, cwd=place / "empty", env=kept, capture_output=True, text=True, check=False)
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran

    return run


def test_the_client_needs_no_package_of_the_server(run, place):
    version = metadata.version("obscura")
    assert run("obscura", "--version").stdout == f"obscura {version}\n"
    code = "import sys, obscura; print(obscura.__file__, {'fastapi', 'sqlalchemy', 'torch'} & set(sys.modules))"
    printed = run("python", "-c", code).stdout
    assert printed.startswith(str(place / "venv"))
    assert printed.endswith("set()\n")


@pytest.mark.parametrize(
    ("command", "extra"), [(["up"], "worker"), (["ledger", "status"], "server"), (["openapi"], "server")]
)
def test_a_command_names_the_extra_that_it_needs(run, command, extra):
    failed = run("obscura", *command, code=1)
    assert f"Run: pip install 'obscura[{extra}]'" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert failed.stdout == ""


def test_another_package_of_the_same_name_is_named(run, place):
    (place / "empty" / "service").mkdir(parents=True)
    (place / "empty" / "service" / "__init__.py").touch()
    assert "another 'service' than Obscura's" in run("python", "-c", "import obscura", code=1).stderr
    shutil.rmtree(place / "empty")


def test_migrations_come_with_the_wheel(run, place):
    code = "import sys; from service.db.schema import upgrade_schema; upgrade_schema(sys.argv[1])"
    everything = Path(sysconfig.get_path("purelib"))
    run("python", "-c", code, f"sqlite:///{place}/obscura.db", beside=everything)
    with sqlite3.connect(place / "obscura.db") as database:
        (newest,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
    assert newest == max(path.name[:4] for path in (ROOT / "alembic" / "versions").glob("0*.py"))


def test_installed_packages_say_that_they_are_typed(place):
    (site_packages,) = (place / "venv").glob("lib/python3*/site-packages")
    packages = {path.parent.name for path in site_packages.glob("*/__init__.py")}
    assert {path.parent.name for path in site_packages.glob("*/py.typed")} == packages == set(SOURCES) - {"alembic"}
