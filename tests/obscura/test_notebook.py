"""docs/notebook.ipynb runs from top to bottom in Jupyter's own machinery, and shows what it promises."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


def outputs(notebook: Any, source: str) -> str:
    """What the cell that contains this text has shown."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    shown = [output.get("text", "") + "".join(output.get("data", {}).values()) for output in cell.outputs]
    return "".join(shown)


def test_it_is_kept_without_what_it_showed():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell)


@pytest.mark.slow
def test_every_cell_runs(tmp_path, warm):
    made = tmp_path / "here"
    made.mkdir()
    shutil.copy(NOTEBOOK, made)
    folders = {name: str(tmp_path / name) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
    startup = tmp_path / "IPYTHONDIR" / "profile_default" / "startup" / "warm.py"
    startup.parent.mkdir(parents=True)
    startup.write_text(f"import sys; sys.executable = {warm!r}\n")
    command = [Path(sys.executable).with_name("jupyter-execute"), "--inplace", "--timeout=300", NOTEBOOK.name]
    ran = subprocess.run(
        command, cwd=made, env=os.environ | folders, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr
    notebook = nbformat.read(made / NOTEBOOK.name, as_version=4)
    assert "1,400 images" in outputs(notebook, "datasets.push")
    assert "costs epsilon 1.000 of 1.000" in outputs(notebook, "service.plan")
    assert 'src="data:image/png;base64,' in outputs(notebook, "service.train")
    assert "<th>spent</th><td>epsilon 1.0</td>" in outputs(notebook, "service.account(")
    assert "(1000, 28, 28)" in outputs(notebook, "to_numpy")
    assert len(list((made / "synthetic").glob("*/*.png"))) == 1000
    assert all((made / name).stat().st_size > 100 for name in ("grid.png", "receipt.json", "report.html"))
    assert not (made / "data" / "service.url").exists()
