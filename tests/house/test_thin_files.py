"""A short file with one reader stands alone for a reason: it is a noun of its own, and the reason is written here."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("obscura", "service", "workers", "models", "privacy", "scripts")
LINES_MAX = 130

# By folder: each file is one of many of its kind, and is found by its name.
KINDS = {
    "obscura/cli": "a command",
    "obscura/preparing/layouts": "a layout of a data set",
    "privacy/gradients": "a gradient estimator, or what chooses among them",
    "privacy/plans": "a recipe's plan",
    "scripts": "a program",
    "service/cli": "a command",
    "service/dashboard": "a noun's pages, or how a browser sends a file",
    "service/ingest": "an upload format, what it refuses, or how ids end",
    "workers/recipes": "a recipe's loop",
    "workers/train/kinds": "a kind of job",
}
OWN = {
    "service/storage/s3/claims.py": "a protocol between machines, with the reason that it holds",
    "service/storage/s3/lookup.py": "reads what stands in a bucket; the chaos benchmark reads it, too",
    "models/discriminator.py": "a network",
    "models/kernel_teachers.py": "a network, beside the other teachers",
    "models/linear_teachers.py": "a network, beside the other teachers",
    "models/program.py": "writes a program that stands alone, from whole files, which are never imported",
    "obscura/client/connections.py": "is imported last, for importing the client must read no settings",
    "obscura/client/download.py": "a file that arrives whole, or not at all",
    "obscura/pictures/header.py": "reads strangers' bytes; imported by the confined reader, too",
    "obscura/preparing/opening.py": "bounds what a decoder is given",
    "obscura/preparing/screen.py": "the words of one screen",
    "obscura/preparing/nifti.py": "a file format, as dicom.py is one",
    "obscura/preparing/summary.py": "the words of one sentence",
    "privacy/auditing/distinguishing.py": "a game that tries to break a mechanism",
    "privacy/auditing/payment_order.py": "a game that tries to break a mechanism",
    "privacy/mechanisms/contribution.py": "a mechanism, with its proof",
    "service/api/routes/audit.py": "a noun's routes",
    "service/api/routes/shares.py": "a noun's routes",
    "service/api/routes/webhooks.py": "likewise",
    "service/audit/anchors.py": "reads what a stranger's server says",
    "service/datasets/erasing.py": "what is erased and why that is safe, which the audit relies on",
    "service/db/revisions.py": "of migrations alone",
    "service/db/writers.py": "who waits for SQLite's one writer; it carries the bar of 300 pairs a second",
    "service/ledger/counting.py": "what spends without a hold",
    "service/ledger/facts.py": "what is written and moves no budget",
    "workers/evaluation/membership.py": "an attack, which only tests and benchmarks mount",
    "workers/evaluation/panels.py": "the report's pictures",
    "workers/supervise/dispatch.py": "the embedded mode's only part of its own",
    "workers/train/checkpoints.py": "a sealed file, with its crash safety",
    "workers/train/croissant.py": "a format of the outside world",
    "workers/train/unions.py": "what of several datasets is read, with the proof that a unit changes it once",
}


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def thin() -> set[str]:
    """Files with fewer lines that at most one other file imports; packages' faces and entry points are none."""
    sources = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    importers: dict[str, set[str]] = {module_of(path): set() for path in sources}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                named = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            for module in named:
                if module in importers:
                    importers[module].add(path)
    return {
        path
        for path, source in sources.items()
        if not path.endswith(("__init__.py", "__main__.py"))
        and len(source.splitlines()) < LINES_MAX
        and len(importers[module_of(path)] - {path}) <= 1
    }


def test_a_short_file_with_one_reader_has_a_reason_and_each_reason_a_file() -> None:
    found = thin()
    of_a_kind = {path for path in found if any(path.startswith(f"{folder}/") for folder in KINDS)}
    assert found - of_a_kind - set(OWN) == set()
    assert set(OWN) - found == set()
    assert {folder for folder in KINDS if not any(path.startswith(f"{folder}/") for path in found)} == set()
