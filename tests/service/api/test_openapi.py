"""The OpenAPI document in the repository is the one that the service serves (`obscura openapi > docs/openapi.json`)."""

import json
import subprocess
import sys
from pathlib import Path

from service.main import create_app
from service.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


def test_the_document_in_the_repository_is_current(tmp_path):
    app = create_app(Settings(data_dir=tmp_path))
    written = json.loads((ROOT / "docs" / "openapi.json").read_text("utf-8"))
    assert app.openapi() == written, "the interface changed: review it, then run `obscura openapi > docs/openapi.json`"


def test_it_is_openapi_3_1_and_every_operation_is_described(tmp_path):
    document = create_app(Settings(data_dir=tmp_path)).openapi()
    assert document["openapi"].startswith("3.1")
    names = [operation["operationId"] for operations in document["paths"].values() for operation in operations.values()]
    assert len(names) == len(set(names))
    for path, operations in document["paths"].items():
        assert path.startswith("/v1/")
        for operation in operations.values():
            assert operation["summary"]
            assert operation["description"]
            assert "application/problem+json" in operation["responses"]["default"]["content"]
            assert "422" not in operation["responses"]


def test_the_web_process_imports_no_torch():
    code = (
        "import service.main, service.cli, sys; print(sorted({'torch', 'torchvision', 'sklearn'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "[]"
