"""The import contracts of pyproject.toml hold and catch planted violations; docs/contribute/architecture.md agrees."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("obscura", "service", "workers", "models", "privacy")


def lint(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_is_kept():
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout


PLANTED = {
    "layers": {
        "service/ledger/accounts.py": "import service.jobs",
        "service/db/base.py": "import service.ledger",
        "service/ledger/holds.py": "import service.audit.findings",
    },
    "no-cycles": {
        "obscura/preparing/preparation.py": "import obscura.client",
        "service/identity/access.py": "import service.ledger",
    },
    "mathematics-is-pure": {
        "privacy/accounting/events.py": "import sqlalchemy",
        "models/portable/generator.py": "import httpx",
    },
    "no-torch": {
        "privacy/accounting/filter.py": "import torch",
        "service/jobs/planning.py": "import models.portable.generator",
        "workers/supervise/supervisor.py": "import workers.train.runner",
        "service/main.py": "import workers.train.runner",
    },
    "workers": {"workers/recipes/records.py": "import workers.train.progress"},
    "training-knows-no-service": {
        "workers/recipes/registry.py": "import service.settings",
        "workers/evaluation/report.py": "import celery",
    },
    "confined-reader": {
        "service/ingest/zip_archive.py": "import sqlalchemy",
        "obscura/image_types.py": "import httpx",
    },
    "library-stands-alone": {
        "obscura/client/transport.py": "import service.ledger",
        "obscura/wire/schemas.py": "import privacy.accounting.events",
    },
    "wire-alone": {"service/views/accounts.py": "import obscura.client"},
    "second-opinion": {"service/audit/replay.py": "import service.ledger.rows"},
    "who-supervises": {
        "service/cli/serving.py": "import workers.supervise.dispatch",
        "service/dashboard/releases.py": "import workers.supervise.reconcile",
    },
    "ledger-tables": {"service/jobs/planning.py": "import service.db.ledger_tables"},
}


@pytest.mark.parametrize("contract", PLANTED)
def test_planted_violations_are_caught(copied, contract):
    for file, line in PLANTED[contract].items():
        with (copied / file).open("a", encoding="utf-8") as module:
            module.write(f"\n{line}\n")
    result = lint(copied, "--contract", contract)
    assert result.returncode != 0
    for file, line in PLANTED[contract].items():
        name = file.removesuffix(".py").replace("/", ".")
        if contract == "no-cycles":  # its report names packages relative to their parent
            name = f".{name.split('.')[1]}"
        assert re.search(rf"{name} ->\s+({line.split()[1]}|\.{line.split('.')[-1]})\b", result.stdout), result.stdout


def layers() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    lines: list[str] = next(contract["layers"] for contract in settings["contracts"] if contract["id"] == "layers")
    return lines


def strays(directory: Path) -> set[str]:
    """Return modules on no layer, whose imports no contract restricts."""
    placed = {name for line in layers() for name in re.findall(r"[\w.]+", line)}
    found = set()
    for package in PACKAGES:
        for path in (directory / package).rglob("*.py"):
            parts = path.relative_to(directory).with_suffix("").parts
            above = {".".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
            if parts != (package, "__init__") and not above & placed:
                found.add(".".join(parts))
    return found


def test_every_module_stands_on_a_layer(copied):
    assert strays(ROOT) == set()
    (copied / "service" / "novelty.py").touch()
    (copied / "service" / "ledger" / "novelty.py").touch()
    assert strays(copied) == {"service.novelty"}


def test_only_the_ledger_writes_its_tables():
    """Elsewhere rows are only read."""
    writers = []
    for package in ("service", "workers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.is_relative_to(ROOT / "service" / "ledger") or path.is_relative_to(ROOT / "service" / "db"):
                continue
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
            ours = ("service.db", "service.ledger")
            others = {name.name for node in imports if not str(node.module).startswith(ours) for name in node.names}
            tables = {"Account", "Entry", "Hold"} - others
            for node in nodes:
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                    continue
                written = node.func.id in {"insert", "update", "delete"} and {
                    argument.id for argument in node.args if isinstance(argument, ast.Name)
                }
                if node.func.id in tables or (written and written & tables):
                    writers.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert writers == []


# --- docs/contribute/architecture.md ----------------------------------------------------------------------------------


TEXT = (ROOT / "docs" / "contribute" / "architecture.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,3}} |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[2]


def fenced(text: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    assert found is not None
    return found[1]


def test_the_layers_are_those_that_are_checked():
    drawn = []
    for row in re.findall(r"^\| [^|]+ \| (`.*) \|$", section("Layers"), flags=re.MULTILINE):
        first, *others = re.findall(r"`([\w.]+)`", row)
        root = first.split(".")[0]
        drawn.append([first, *(root + other if other.startswith(".") else other for other in others)])
    assert drawn == [re.findall(r"[\w.]+", layer) for layer in layers()]


def imports(room: str) -> set[str]:
    place = ROOT / room
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    tops = "obscura|service|workers|models|privacy"
    packages = re.findall(rf"^\s*(?:from|import) ((?:{tops})[\w.]*)", code, flags=re.MULTILINE)
    named = re.findall(rf"^\s*from ((?:{tops})[\w.]*) import ([^\n(]+)", code, flags=re.MULTILINE)
    return set(packages) | {f"{package}.{name.strip()}" for package, names in named for name in names.split(",")}


def test_the_picture_has_rooms_that_exist_and_arrows_that_are_imports():
    drawn = fenced(section("Packages"), "mermaid")
    rooms = dict(re.findall(r"^\s*(\w+)\[\"?([\w/]+)", drawn, flags=re.MULTILINE))
    arrows = re.findall(r"^\s*(\w+)-->(\w+)$", drawn, flags=re.MULTILINE)
    assert len(rooms) > 10
    assert len(arrows) > 10
    for room in rooms.values():
        assert (ROOT / room).is_dir() or (ROOT / f"{room}.py").is_file(), room
    for start, end in arrows:
        target = rooms[end].replace("/", ".")
        found = imports(rooms[start])
        assert any(name == target or name.startswith(f"{target}.") for name in found), f"{rooms[start]} -> {target}"
