"""The documents name only what there is, tables are generated, and the documentation site has every page."""

import base64
import hashlib
import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest
from fastapi import FastAPI
from mkdocs.commands.build import build
from mkdocs.config import load_config
from PIL import Image
from starlette.testclient import TestClient

from privacy.plans.registry import RECIPES
from scripts import images
from service.api.problems import STATUSES
from service.audit.findings import FindingCode
from service.dashboard.pages import Documentation
from service.main import create_app
from service.settings import Settings
from tests.commands import command_of

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# `make docs` writes them (docs/reference/generate.py), and checks the links to them.
GENERATED = ("cli", "errors", "http-api", "ledger-findings", "recipes", "settings")
DOCS_LINK = re.compile(r"(/docs/[a-z/-]*)")  # in templates
TOP_FOLDERS = (
    "obscura", "privacy", "models", "workers", "service", "alembic", "benchmarks", "tests", "docs", "scripts", "deploy",
)  # fmt: skip


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def document(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def text(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def test_links_and_pictures_lead_somewhere(document, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if file.parent == ROOT / "docs" / "reference" and file.stem in GENERATED:
            continue
        assert file.exists(), f"{document.name} points to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{document.name} points to {target}"


def test_the_tutorial_quotes_labels_of_the_dashboard():
    sources = [
        path.read_text("utf-8") for path in (ROOT / "service").rglob("*.*") if path.suffix in (".html", ".js", ".py")
    ]
    tutorial = (ROOT / "docs" / "tutorials" / "browser.md").read_text("utf-8")
    labels = re.findall(r"(?<![*\w])\*([A-Z][\w ,]+?)(?: \d+)?\*", tutorial)  # without numbers at the end
    assert len(labels) > 10
    assert [label for label in labels if not any(label in source for source in sources)] == []


def test_each_image_of_the_guides_has_a_script_that_draws_it():
    guides = {path for path in DOCUMENTS if path.parent.name != "research"}
    shown = {name for path in guides for name in re.findall(r"!\[.*?\]\((?:\S*/)?([^/\s]+)\)", path.read_text("utf-8"))}
    assert shown == images.SCRIPTS.keys()
    for script in images.SCRIPTS.values():
        assert importlib.util.find_spec(script.split()[0]) is not None


def test_the_image_of_the_readme_was_drawn_with_the_defaults_of_today():
    name = "real_and_synthetic.png"
    mend = f"run python -m {images.SCRIPTS[name]}"
    assert json.loads(Image.open(images.FOLDER / name).text["shows"]) == RECIPES["moments"].defaults, mend


def test_files_in_backticks_modules_of_commands_and_make_targets_exist(document, text):
    for name in re.findall(rf"`((?:{'|'.join(TOP_FOLDERS)})/[\w./-]*)`", text):
        assert (ROOT / name).exists(), f"{document.name} names {name}"
    for name in re.findall(r"python -m ((?:benchmarks|scripts)(?:\.\w+)*)", text):
        assert importlib.util.find_spec(name) is not None, f"{document.name} names {name}"
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"`?\bmake ([a-z]+)`", text)) <= set(targets), document.name


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
    known = {f"OBSCURA_{name.upper()}" for name in Settings.model_fields}
    others = [ROOT / ".env.example", ROOT / "scripts/with_services.py", *sorted((ROOT / "obscura/cli").rglob("*.py"))]
    for path in others:
        known |= set(re.findall(r"OBSCURA_[A-Z_]+", path.read_text(encoding="utf-8")))
    for name in set(re.findall(r"OBSCURA_[A-Z_]+", text)):
        assert name in known, f"{document.name} names {name}"


def test_the_table_of_statuses_has_every_error_code_with_its_status():
    page = (ROOT / "docs" / "reference" / "api-conventions.md").read_text("utf-8").partition("| status | codes |")[2]
    rows = [line.split("|")[1:3] for line in page.splitlines() if re.match(r"\| \d", line)]
    shown = {code: set(map(int, statuses.split(","))) for statuses, codes in rows for code in re.findall(r"\w+", codes)}
    assert shown.keys() == STATUSES.keys()
    assert {code for code, status in STATUSES.items() if status not in shown[code]} == set()
    assert {status for statuses in shown.values() for status in statuses} == {*STATUSES.values(), 400}


def test_sentences_name_the_status_of_a_code_and_call_a_project_a_project(document, text):
    for status, code in re.findall(r"\b([45]\d\d) `(\w+)`", text):
        assert STATUSES[code] == int(status), f"{document.name}: {status} {code}"
    assert document.parent.name == "research" or "department" not in text.lower()


def test_nothing_is_promised_that_mathematics_does_not_give(text):
    assert not re.search(r"anonymous|anonymis|anonymiz|100 ?% private|completely private", text, flags=re.IGNORECASE)


def test_the_generated_pages_cover_every_operation_error_option_setting_and_finding(tmp_path, monkeypatch):
    monkeypatch.setenv("OBSCURA_DATA_DIR", str(tmp_path))
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "reference" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    pages = {name: write() for name, write in generate.PAGES.items()}
    paths = create_app(Settings(data_dir=tmp_path)).openapi()["paths"]
    for path, methods in paths.items():
        assert all(f"| `{method.upper()} {path}` |" in pages["http-api"] for method in methods), path
    assert all(f"## `{code}`" in pages["errors"] for code in STATUSES)
    assert all(f"| `{code}` |" in pages["ledger-findings"] for code in FindingCode)
    assert all(f"| `OBSCURA_{name.upper()}` |" in pages["settings"] for name in Settings.model_fields)
    for recipe in RECIPES.values():
        assert all(f"| `{option}` | " in pages["recipes"] for option in recipe.config.model_fields), recipe.name
    assert "## `obscura accounts close`" in pages["cli"]


# --- the site that `make docs` builds ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OBSCURA_DATA_DIR", str(folder / "var"))
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder / "site")))
    return folder / "site"


def client_of(site: Path) -> TestClient:
    app = FastAPI(docs_url=None)
    app.mount("/docs", Documentation(site))
    return TestClient(app)


@pytest.mark.slow
def test_every_page_is_built_and_allows_its_own_scripts_alone(site):
    client, pages = client_of(site), sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for path in pages:
        answer = client.get(f"/docs/{path.relative_to(site)}")
        policy = answer.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        for script in re.findall(r"<script>(.*?)</script>", answer.text, flags=re.DOTALL):
            assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy, path
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="([^"]+)"', answer.text)
        assert not [address for address in loaded if re.match(r"[a-z]+:|//", address)], path
    errors = client.get("/docs/reference/errors/")
    assert all(f'id="{code}"' in errors.text for code in STATUSES)
    assert client.get("/docs/../pyproject.toml").status_code == 404
    imports = client.get("/docs/contribute/architecture/").text  # a table in place of a diagram
    assert re.search(r"<td><code>obscura/cli</code></td>\s*<td><code>obscura/client</code></td>", imports)


def test_browsers_keep_a_page_and_ask_whether_it_has_changed(tmp_path):
    (tmp_path / "index.html").write_text("<p>A page.</p>")
    client = client_of(tmp_path)
    first = client.get("/docs/")
    assert first.headers["Cache-Control"] == "no-cache"
    again = client.get("/docs/", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_without_a_built_site_every_link_leads_to_its_source_or_to_the_error_codes(tmp_path):
    client = client_of(tmp_path / "missing")
    for link in {link for path in (ROOT / "service").rglob("*.html") for link in DOCS_LINK.findall(path.read_text())}:
        answer = client.get(link)
        assert answer.status_code == 404
        assert "<code>make docs" in answer.text
        source = "docs/index.md" if link == "/docs/" else f"{link.strip('/')}.md"
        if source == "docs/reference/errors.md":
            assert all(f'<dt id="{code}">' in answer.text for code in STATUSES)
        else:
            assert f"<code>{source}</code>" in answer.text
            assert (ROOT / source).is_file()
    assert "<b>" not in client.get("/docs/<b>x").text
