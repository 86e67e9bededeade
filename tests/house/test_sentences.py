"""Phrases by which a sentence becomes a riddle stand nowhere: a stranger has to understand it at first reading."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "obscura", "service", "workers", "models", "privacy", "benchmarks", "tests", "scripts", "alembic", "docs",
)  # fmt: skip
WRITTEN = (".py", ".md", ".html", ".ipynb")
RIDDLE = re.compile(r"(?<![Tt]here )\bis none\b|\bthat of which\b|\bAs (in )?every\b")
CODE = re.compile(r"\{[{%].*?[%}]\}")  # of a template, where a value may be compared with none


def riddles(text: str) -> list[str]:
    return [match[0] for match in RIDDLE.finditer(CODE.sub("", text))]


def test_no_sentence_is_a_riddle():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in WRITTEN]
    files = [file for file in (ROOT / "README.md", *files) if file != Path(__file__).resolve()]
    found = {str(file.relative_to(ROOT)): riddles(file.read_text(encoding="utf-8")) for file in files}
    assert len(found) > 500
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


def test_a_riddle_is_found_and_a_comparison_is_not_one():
    assert riddles("what is none says nothing. As in every recipe. A thing and that of which it is made.") == [
        "is none",
        "As in every",
        "that of which",
    ]
    assert riddles("There is none. {% if holds is none %}none of them{% endif %}{{ 'x' if it is none else it }}") == []
