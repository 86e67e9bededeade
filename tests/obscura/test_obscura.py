"""`import obscura`: from images in memory to synthetic ones, on a service of one's own; the notebook does the same."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

import obscura
from obscura.client import AlreadyTrained, BudgetError, ObscuraClientError, PackingError, Release, Sample
from tests.obscura.small import SMALL, two_classes
from tests.together import wait_until

START = """
import sys, obscura
service = obscura.local(sys.argv[1])
print(service.service.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_training_opens_an_account_that_pays_for_these_images_once(service, release, images):
    account = service.accounts.get("images")
    assert (account.name, account.epsilon, account.delta, account.unit) == ("images", 1, 1e-4, "record")
    assert 0 < account.balance.spent_epsilon <= 1
    with pytest.raises(BudgetError):
        service.train(*images, epsilon=1, at_most=200, options=SMALL, show=False)
    other = images[0][::-1].copy(), images[1][::-1]
    with pytest.raises(BudgetError, match="Nothing was uploaded"):
        service.train(*other, epsilon=1, at_most=200, options=SMALL, show=False)
    with pytest.raises(BudgetError):  # before the images are read, and so before anything is declared
        service.train("no such folder", account="images", epsilon=1, at_most=200, show=False)
    (dataset,) = (each for each in service.datasets.list() if each.account_id == account.id)
    (job,) = (each for each in service.jobs.list() if (each.kind, each.dataset_id) == ("train", dataset.id))
    assert job.wait().release() == release
    assert "epsilon" in account._repr_html_()


@pytest.mark.slow
def test_a_training_without_an_epsilon_spends_a_third_of_what_is_left(service):
    images, labels = two_classes(200)
    with pytest.raises(PackingError, match="epsilon=1"):
        service.train(images, labels, at_most=200, name="thirds", options=SMALL, show=False)
    assert "thirds" not in {account.name for account in service.accounts.list()}
    account = service.accounts.create("thirds", owner="clinic", epsilon=3, delta=1e-5, unit="record")
    first = service.train(images, labels, at_most=200, name="thirds", options=SMALL, show=False)
    assert first.epsilon == pytest.approx(1.0)
    dataset = service.datasets.get("thirds")
    with pytest.raises(AlreadyTrained, match=first.id):
        service.train(dataset, options=SMALL, show=False)
    second = service.train(dataset, options=SMALL, again=True, show=False)
    assert 0.8 < second.epsilon < 1.0
    assert account.refresh().balance.affordable_epsilon > second.epsilon
    assert set(first.compare(second)) == {"epsilon"}


@pytest.mark.slow
def test_images_are_drawn_into_memory_by_class_and_shown(service, release):
    images = release.images(12, seed=3)
    assert images["left"].shape == (6, 8, 8)
    assert np.array_equal(images.pixels, release.sample(12, seed=3).to_numpy()[0])
    assert images.show().size == release.sample(12, seed=3).show().size
    shown = release.sample(12, seed=3, format="npz").wait()
    assert "data:image/png;base64," in shown._repr_html_()
    assert service.releases.get(release.name).id == release.id


@pytest.fixture(scope="module")
def sample(release: Release) -> Sample:
    return release.sample(30).wait()


@pytest.mark.slow
def test_a_sample_goes_where_it_is_needed(sample, tmp_path):
    pixels, labels = sample.to_numpy()
    assert (pixels.shape, pixels.dtype, labels.shape, labels.dtype) == ((30, 8, 8), "uint8", (30,), "int64")
    assert sample.images().classes == ("<top>", "left")
    assert pixels[labels == 0][:, :3, 5:].mean() > pixels[labels == 1][:, :3, 5:].mean()  # bright at the top
    batch, numbers = sample.to_torch()[:]
    assert batch.shape == (30, 1, 8, 8)
    assert float(batch[3].max()) == pytest.approx(pixels[3].max() / 255)
    assert numbers.tolist() == labels.tolist()
    folder = sample.to_imagefolder(tmp_path / "made")
    files = sorted(folder.glob("*/*.png"))
    assert len(files) == 30
    assert {tuple(np.asarray(Image.open(file)).ravel()) for file in files} == {tuple(each.ravel()) for each in pixels}
    with pytest.raises(ObscuraClientError, match="not an empty folder"):
        sample.to_imagefolder(tmp_path / "made")
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.slow
def test_a_sample_becomes_a_dataset_of_hugging_face(sample):
    pytest.importorskip("datasets")
    made = sample.to_hf()
    assert made.features["label"].names == ["<top>", "left"]
    assert (len(made), made[0]["image"].size) == (30, (8, 8))


@pytest.mark.slow
def test_a_sample_is_packed_in_every_format_and_holds_the_same_images(release, sample, tmp_path):
    pixels, labels = sample.to_numpy()
    folder = sample.to_parquet(tmp_path / "made")
    table = parquet.read_table(folder / "data" / "train-00000-of-00001.parquet").to_pylist()
    assert [row["label"] for row in table] == labels.tolist()
    shown = [np.asarray(Image.open(io.BytesIO(row["image"]["bytes"]))) for row in table]
    assert np.array_equal(np.stack(shown), pixels)
    with tarfile.open(sample.to_webdataset(tmp_path / "made.tar")) as archive:
        assert archive.extractfile("0000001.cls").read() == b"1"
    for format in ("parquet", "webdataset"):
        again, numbers = release.sample(30, format=format).to_numpy()
        assert np.array_equal(again, pixels)
        assert np.array_equal(numbers, labels)


@pytest.mark.slow
def test_the_program_that_comes_with_the_weights_draws_what_the_service_draws(release, sample, tmp_path):
    release.save_weights(tmp_path / "weights")
    command = [sys.executable, "-I", "load_generator.py", "--count", "30", "--out", str(tmp_path / "images")]
    subprocess.run(command, cwd=tmp_path / "weights", check=True)
    drawn, folder = tmp_path / "images", sample.to_imagefolder(tmp_path / "made")
    names = sorted(path.relative_to(folder) for path in folder.glob("*/*.png"))
    assert sorted(path.relative_to(drawn) for path in drawn.rglob("*.png")) == names
    assert all(np.array_equal(Image.open(drawn / name), Image.open(folder / name)) for name in names)


@pytest.mark.slow
def test_a_release_hands_out_what_was_trained_and_shows_itself(release, tmp_path):
    names = {path.name for path in release.save_weights(tmp_path)}
    made = {"README.md", "load_generator.py", "artifact.json"}
    assert names == {"generator.json", "generator.safetensors", "privacy_card.json", *made}
    assert release.save_report(str(tmp_path / "report.html")).stat().st_size > 1000
    assert release.receipt()["statement"]["release_id"] == release.id
    assert release.card()["unit"] == "record"
    shown = release._repr_html_()
    assert "data:image/png;base64," in shown
    assert "one record" in shown
    assert "<top>" not in shown


def test_a_folder_whose_service_runs_is_shared(service, data_dir):
    with obscura.local(data_dir) as other:
        assert (other.service.url, other.service.process) == (service.service.url, None)
    assert service.ready()


def test_a_service_ends_when_its_program_is_killed(tmp_path, warm):
    command = [warm, "-c", START, str(tmp_path / "data")]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = int(program.stdout.readline())
    os.kill(pid, 0)
    program.send_signal(signal.SIGKILL)
    program.communicate()
    wait_until(lambda: not (tmp_path / "data" / "service.url").exists(), "the service goes on", seconds=60)


# --- docs/notebook.ipynb ----------------------------------------------------------------------------------------------


NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


def outputs(notebook: Any, source: str) -> str:
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    shown = [output.get("text", "") + "".join(output.get("data", {}).values()) for output in cell.outputs]
    return "".join(shown)


def kinds(notebook: Any) -> list[tuple[str, bool]]:
    """Return the source of each cell with an output, and whether it shows an image."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    return [(cell.source, "image/png" in str(cell.outputs)) for cell in cells]


def test_it_is_kept_with_what_it_shows():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert "data:image/png;base64," in outputs(notebook, "service.train(dataset")
    assert outputs(notebook, "images.show(")
    assert len(kinds(notebook)) > 9
    content = NOTEBOOK.read_text()
    assert len(content) < 300_000
    assert not re.search(r"/(home|root|tmp|work|Users)/|\"output_type\": \"error\"", content)


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
    assert kinds(notebook) == kinds(nbformat.read(NOTEBOOK, as_version=4))
    assert "6,000 images" in outputs(notebook, "datasets.push")
    assert "(1000, 28, 28)" in outputs(notebook, "to_numpy")
    assert 'src="data:image/png;base64,' in outputs(notebook, "service.train(dataset")
    assert "<th>spent</th><td>epsilon 1.0</td>" in outputs(notebook, "account.refresh()")
    assert len(list((made / "synthetic").glob("*/*.png"))) == 1000
    assert all((made / name).stat().st_size > 100 for name in ("grid.png", "receipt.json", "report.html"))
    assert not (made / "data" / "service.url").exists()
