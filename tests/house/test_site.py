"""The documentation site that `make docs` builds: every page is there, and nothing comes from elsewhere."""

import base64
import hashlib
import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from mkdocs.commands.build import build
from mkdocs.config import load_config
from starlette.testclient import TestClient

from service.api.problems import STATUSES
from service.dashboard.documentation import Documentation

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OBSCURA_DATA_DIR", str(folder / "var"))
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder / "site")))
    return folder / "site"


@pytest.mark.slow
def test_every_page_is_built_and_allows_its_own_scripts_alone(site):
    app = FastAPI(docs_url=None)
    app.mount("/docs", Documentation(site))
    client, pages = TestClient(app), sorted(site.rglob("*.html"))
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


def test_browsers_keep_a_page_and_ask_whether_it_has_changed(tmp_path):
    (tmp_path / "index.html").write_text("<p>A page.</p>")
    app = FastAPI(docs_url=None)
    app.mount("/docs", Documentation(tmp_path))
    first = TestClient(app).get("/docs/")
    assert first.headers["Cache-Control"] == "no-cache"
    again = TestClient(app).get("/docs/", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_an_installation_without_the_site_knows_no_page_of_it(tmp_path):
    app = FastAPI(docs_url=None)
    app.mount("/docs", Documentation(tmp_path / "missing"))
    assert TestClient(app).get("/docs/index.html").status_code == 404
