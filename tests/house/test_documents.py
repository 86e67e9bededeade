"""The documents name only existing files, links, make targets, commands, settings and routes; tables are generated."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from privacy.plans.registry import RECIPES
from scripts.recipe_tables import PAGES, with_tables
from tests.commands import command_of

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOP_FOLDERS = (
    "obscura", "privacy", "models", "workers", "service", "alembic", "benchmarks", "tests", "docs", "scripts", "deploy",
)  # fmt: skip


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def text(document: Path) -> str:
    text = document.read_text(encoding="utf-8")
    if document.name == "removed.md":  # its first column names features that no longer exist
        text = "\n".join(line.split(" | ", 1)[-1] for line in text.splitlines())
    return text


def test_links_and_pictures_lead_somewhere(document, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{document.name} points to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{document.name} points to {target}"


def test_files_in_backticks_exist(document, text):
    for name in re.findall(rf"`((?:{'|'.join(TOP_FOLDERS)})/[\w./-]*)`", text):
        assert (ROOT / name).exists(), f"{document.name} names {name}"


def test_modules_of_commands_exist(document, text):
    for name in re.findall(r"python -m ((?:benchmarks|scripts)(?:\.\w+)*)", text):
        assert importlib.util.find_spec(name) is not None, f"{document.name} names {name}"


def test_make_targets_exist(document, text):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?\bmake ([a-z]+)`", text):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"{document.name} names make {target}"


def test_commands_in_examples_can_be_parsed(text):
    text = text.replace("\\\n", " ")
    for line in re.findall(r"^obscura ([^\n]*)$", text, flags=re.MULTILINE):
        command, words = command_of(shlex.split(line, comments=True))
        command.make_context(line, words)  # exits with a message when an argument is unknown or missing


def test_commands_in_sentences_exist(text):
    for line in re.findall(r"`obscura ([^`\n]*)`", text):
        command, words = command_of(shlex.split(line))
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options | {"--help"}, line


def test_settings_exist(document, text):
    from service.settings import Settings

    known = {f"OBSCURA_{name.upper()}" for name in Settings.model_fields}
    others = [ROOT / ".env.example", ROOT / "scripts/with_services.py", *sorted((ROOT / "obscura/cli").rglob("*.py"))]
    for path in others:
        known |= set(re.findall(r"OBSCURA_[A-Z_]+", path.read_text(encoding="utf-8")))
    for name in set(re.findall(r"OBSCURA_[A-Z_]+", text)):
        assert name in known, f"{document.name} names {name}"


def test_nothing_is_promised_that_mathematics_does_not_give(text):
    assert not re.search(r"anonymous|anonymis|anonymiz|100 ?% private|completely private", text, flags=re.IGNORECASE)


def test_the_api_guide_lists_every_route_and_no_other(tmp_path):
    from service.main import create_app
    from service.settings import Settings

    paths = create_app(Settings(data_dir=tmp_path)).openapi()["paths"]
    real = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    guide = (ROOT / "docs" / "routes.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`((?:GET|POST|PUT|DELETE|PATCH) /v1[^`]*)`", guide)) == real


def test_the_api_guide_names_every_error_code_of_the_api():
    from service.api.problems import STATUSES

    guide = (ROOT / "docs" / "routes.md").read_text(encoding="utf-8")
    internal = {"stale_attempt", "hold_exhausted", "range_not_satisfiable"}  # of workers, and plain HTTP
    assert set(STATUSES) - internal <= set(re.findall(r"`([a-z_]+)`", guide))


def test_the_tables_of_options_follow_from_the_models():
    pages = [path.read_text("utf-8") for path in PAGES]
    for page in pages:
        assert with_tables(page) == page, "options changed: run `python -m scripts.recipe_tables`"
        assert with_tables(page.replace("an integer between", "between")) == page
    page = "\n".join(pages)
    for recipe in RECIPES.values():
        assert f"| `{recipe.name}` |" in page
        for option in recipe.config.model_fields:
            assert f"| `{option}` | " in page
