"""docs/contribute/architecture.md agrees with the code: its layers, and the picture of packages and imports."""

import re
from pathlib import Path

from tests.house.test_imports import layers

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "contribute" / "architecture.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,3}} |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[2]


def fenced(text: str, language: str = "text") -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    assert found is not None
    return found[1]


def test_the_layers_are_those_that_are_checked():
    assert fenced(section("Layers")).splitlines() == [re.sub("[()]", "", layer) for layer in layers()]


def imports(room: str) -> set[str]:
    """Return the modules that a folder or a file imports."""
    place = ROOT / room
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    tops = "obscura|service|workers|models|privacy"
    packages = re.findall(rf"^\s*(?:from|import) ((?:{tops})[\w.]*)", code, flags=re.MULTILINE)
    named = re.findall(rf"^\s*from ((?:{tops})[\w.]*) import ([^\n(]+)", code, flags=re.MULTILINE)
    return set(packages) | {f"{package}.{name.strip()}" for package, names in named for name in names.split(",")}


def test_the_picture_has_rooms_that_exist_and_arrows_that_are_imports():
    drawn = fenced(section("Rooms"), "mermaid")
    rooms = dict(re.findall(r"^\s*(\w+)\[\"?([\w/]+)", drawn, flags=re.MULTILINE))
    arrows = re.findall(r"^\s*(\w+) --> (\w+)$", drawn, flags=re.MULTILINE)
    assert len(rooms) > 10
    assert len(arrows) > 10
    for room in rooms.values():
        assert (ROOT / room).is_dir() or (ROOT / f"{room}.py").is_file(), room
    for start, end in arrows:
        target = rooms[end].replace("/", ".")
        found = imports(rooms[start])
        assert any(name == target or name.startswith(f"{target}.") for name in found), f"{rooms[start]} -> {target}"
