"""Uploads in a real browser: folders and archives as people have them, lost connections, and what becomes public."""

import io
import itertools
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from obscura.preparing.images import Target, prepare_image
from obscura.wire.schemas import DatasetRequest
from service.datasets.vault import Vault, make_fingerprint_key
from service.db.dataset_tables import Dataset
from tests.browser import WINDOWS, a_page, barriers, in_chromium, served, sign_in
from tests.pictures import archive, picture, saved, write_files

pytestmark = in_chromium


@pytest.fixture
def live(site) -> Iterator[str]:
    make_fingerprint_key(site.settings)
    with served(site.app) as address:
        yield address


@pytest.fixture
def page(site, live, browser, open_account) -> Iterator[Any]:
    """The form, open in a browser whose console reports no error, with an account *patients* and one *families*."""
    open_account(site.factory, name="patients")
    open_account(site.factory, name="families", unit="subject")
    with a_page(browser, base_url=live, viewport={"width": 1280, "height": 900}) as (page, errors):
        sign_in(page, site.key("admin"))
        page.goto("/datasets/new")
        page.errors = errors
        yield page
        assert errors == []


def drop(page: Any, *paths: Path) -> None:
    """Drop files or folders, as a file manager does."""
    place = page.locator("[data-drop]").bounding_box()
    at = {"x": place["x"] + 20, "y": place["y"] + 20}
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    session = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "data": data} | at)


def fill(page: Any, account: str = "patients", **fields: Any) -> None:
    page.locator("[data-more]").evaluate("each => (each.open = true)")
    chosen = page.locator("#account_id option", has_text=account).get_attribute("value")
    page.select_option("#account_id", chosen)
    for name, value in ({"records_declared": 5000} | fields).items():
        if name in ("channels", "fit"):
            page.select_option(f"#{name}", str(value))
        else:
            page.fill(f"#{name}", str(value))
    page.locator("#account_id").select_option(
        page.locator("#account_id option", has_text=account).get_attribute("value")
    )


def submit(page: Any) -> None:
    page.get_by_role("button", name="Upload images").click()


def left(site: Any) -> list[Path]:
    return [path for path in site.settings.quarantine_path.rglob("*") if path.is_file()]


def images_of(site: Any, count: int = 1) -> np.ndarray:
    """The stored images of the only dataset, which is ready."""
    datasets = [row for row in site.rows(Dataset) if row.erased_at is None]
    assert [row.state.value for row in datasets] == ["ready"] * count
    return Vault.of(site.settings).open_dataset(datasets[-1].id)[0]


def photographs(count: int) -> Iterator[tuple[str, bytes]]:
    """Photographs of mixed sizes, types, colour modes and orientations, about 20 kB each."""
    noise, order = np.random.default_rng(5), random.Random(5)
    modes = ("RGB", "L", "P", "RGBA", "LA", "CMYK", "1")
    for number in range(count):
        width, height = order.randrange(60, 180), order.randrange(60, 180)
        mode = modes[number % len(modes)]
        image = Image.fromarray(noise.integers(0, 256, (height, width, 4), np.uint8), "RGBA").convert("RGB")
        image = image.convert(mode) if mode != "RGBA" else image
        if mode in ("RGBA", "LA"):
            image.putalpha(order.randrange(256))
        exif = Image.Exif()
        exif[0x0112] = number % 9
        kind = "JPEG" if mode == "CMYK" or (mode in ("RGB", "L") and number % 2) else "PNG"
        yield f"{('cat', 'dog', 'owl')[number % 3]}/{number:04}.{kind.lower()}", saved(image, kind, exif=exif)


@pytest.mark.slow
def test_a_dropped_folder_of_3000_mixed_images_is_stored_as_the_command_line_converts_it(site, page, tmp_path):
    files = dict(photographs(3000))
    assert sum(map(len, files.values())) > 55_000_000
    junk = {".DS_Store": b"x", "cat/Thumbs.db": b"x", "__MACOSX/cat/._0.png": b"x", "cat/notes.txt": b"x"}
    write_files(tmp_path / "photographs", files | junk)
    drop(page, tmp_path / "photographs")
    page.get_by_text("One file is left out").wait_for()
    page.fill("#records_declared", "5000")
    page.select_option("#account_id", label="patients")
    submit(page)
    page.wait_for_url("**/datasets/ds_*")
    assert page.get_by_role("heading", level=1).inner_text().startswith("photographs")
    expected = [prepare_image(files[name], Target(32, 32, 3))[1] for name in sorted(files)]
    found = images_of(site)
    for image, content in zip(found, expected, strict=True):
        np.testing.assert_array_equal(image, np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))
    assert list(site.rows(Dataset)[0].classes) == ["cat", "dog", "owl"]
    assert [path.name for path in left(site)] == ["dataset"]  # by which a repeated request finds its answer


def as_written(names: list[bytes]) -> bytes:
    """An archive whose names are these bytes, without the flag for UTF-8."""
    placeholders = ["QXYZ"[number] * len(name) for number, name in enumerate(names)]
    data = archive(*((each, picture(size=(9, 7), value=number)) for number, each in enumerate(placeholders)))
    for placeholder, name in zip(placeholders, names, strict=True):
        data = data.replace(placeholder.encode(), name)
    return data


MAC = ["Tiere/Bär/1.png", "Tiere/Löwe/2.png", "Tiere/.DS_Store", "__MACOSX/Tiere/Bär/._1.png"]
WINDOWS_FILES = ["Tiere\\Bär\\1.png", "Tiere\\Löwe\\2.png", "Tiere\\Bär\\Thumbs.db", "Tiere\\desktop.ini"]
ARCHIVES = {
    "macOS": as_written([unicodedata.normalize("NFD", name).encode() for name in MAC]),
    "Windows, CP437": as_written([name.encode("cp437") for name in WINDOWS_FILES]),
    "Windows, UTF-8": archive(
        *((name.replace("\\", "/"), picture(size=(9, 7), value=len(name))) for name in WINDOWS_FILES)
    ),
}


@pytest.mark.parametrize("made_by", ARCHIVES)
def test_archives_of_macos_and_windows_are_read(site, page, tmp_path, made_by):
    (tmp_path / "tiere.zip").write_bytes(ARCHIVES[made_by])
    drop(page, tmp_path / "tiere.zip")
    page.get_by_text("Folders around all class folders are ignored").wait_for()
    fill(page, height=40, fit="pad", channels=1)
    submit(page)
    page.wait_for_url("**/datasets/ds_*")
    (dataset,) = site.rows(Dataset)
    assert (list(dataset.classes), dataset.name) == (["Bär", "Löwe"], "tiere")
    found = images_of(site)
    assert found.shape == (2, 40, 32)
    assert (found[:, 0] == 255).all(), "padded with white"


def album(count: int = 6) -> dict[str, bytes]:
    names = (f"album/{('cat', 'dog')[number % 2]}/{number}.png" for number in range(count))
    return {name: picture(size=(9, 7), value=20 * number) for number, name in enumerate(names)}


def test_exactly_what_the_box_shows_becomes_public(site, page, tmp_path):
    write_files(tmp_path, album())
    page.set_input_files("#folder", tmp_path / "album")
    page.get_by_text("The classes are filled in").wait_for()
    box = page.locator("[data-public]:visible")
    assert page.locator("#records_declared").input_value() == "", "nothing is counted"
    fill(page, account="families", records_declared=2000, subjects_declared=300, height=24, name="owls")
    page.locator("#subjects_recognised").check()
    page.locator("#classes").fill("cat\ndog")
    names = box.evaluate_all("all => all.map((each) => each.dataset.public)")
    shown = dict(zip(names, box.all_inner_texts(), strict=True))
    assert shown == {
        "name": "owls",
        "account_id": "families",
        "classes": "cat, dog",
        "width": "32 × 24 pixels",
        "channels": "colour",
        "records_declared": "2,000",
        "subjects_declared": "300",
        "subjects_recognised": "yes",
    }
    # The height is shown with the width, and an account makes a dataset private.
    assert {*shown, "height", "visibility"} == set(DatasetRequest.model_fields)
    page.select_option("#account_id", label="patients")
    assert page.locator("#subjects_declared").is_hidden()
    assert box.evaluate_all("all => all.map((each) => each.dataset.public)") == names[:-2]


@pytest.mark.parametrize("again", ["the network", "a reload"])
def test_a_broken_upload_goes_on_where_it_stopped(site, page, tmp_path, again):
    """The second part is lost, once on its way and once after the service has stored it."""
    noise = np.random.default_rng(5)
    files = {name: saved(noise.integers(0, 256, (320, 320, 3), np.uint8)) for name in album(60)}
    (tmp_path / "album.zip").write_bytes(archive(*files.items()))
    sent: list[str] = []

    def lose(route: Any) -> None:
        sent.append(route.request.url.partition("=")[2])
        if len(sent) == 2:
            route.abort()
        elif len(sent) == 4:  # after the question how much has arrived
            route.fetch()
            route.abort()
        else:
            route.continue_()

    page.route("**/uploads?offset=*", lose)
    for _ in range(2 if again == "a reload" else 1):
        page.set_input_files("#file", tmp_path / "album.zip")
        page.get_by_text("The classes are filled in").wait_for()
        fill(page)
        submit(page)
        if again == "a reload" and len(sent) < 3:
            page.get_by_text("The connection was lost").wait_for()
            page.on("dialog", lambda dialog: dialog.accept())
            page.reload()
    page.wait_for_url("**/datasets/ds_*")
    assert sent.count("0") <= 3, "the first part is sent once; the others ask how much has arrived"
    assert len(images_of(site)) == 60
    page.errors.clear()  # the lost requests


def test_a_rejected_upload_leaves_nothing_and_its_correction_is_accepted(site, page, tmp_path):
    (tmp_path / "album.zip").write_bytes(archive(*(album() | {"album/cat/9.png": b"no image"}).items()))
    page.set_input_files("#file", tmp_path / "album.zip")
    fill(page)
    submit(page)
    page.locator("[data-problem]").get_by_text("not an image").wait_for()
    assert left(site) == []
    assert [row.name for row in site.rows(Dataset) if row.erased_at is None] == []
    page.errors.clear()  # the browser notes the refusal
    (tmp_path / "album.zip").write_bytes(archive(*album().items()))
    page.set_input_files("#file", tmp_path / "album.zip")
    submit(page)
    page.wait_for_url("**/datasets/ds_*")
    assert len(images_of(site)) == 6


FAULTS = {
    "more images than the limit": (album(), {"records_declared": 5}, "more images than the limit"),
    "a name of a person": ({"album/Anna Schmidt/1.png": b"x"}, {}, "look like people"),
    "no class folders": ({"1.png": b"x", "cat/2.png": b"x"}, {}, "Every file must be in a class folder"),
    "people": (
        {"cat/1.png": b"x", "dog/2.png": b"x"},
        {"account": "families", "subjects_declared": 9},
        "no folder for each person",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_shown_before_anything_is_sent(site, page, tmp_path, fault):
    files, fields, message = FAULTS[fault]
    sent: list[Any] = []
    page.route("**/uploads?offset=*", lambda route: (sent.append(route), route.abort()))
    (tmp_path / "album.zip").write_bytes(archive(*files.items()))
    page.set_input_files("#file", tmp_path / "album.zip")
    page.locator("[data-found]").get_by_text("album,").wait_for()
    fill(page, **fields)
    page.locator("[data-more]").evaluate("each => (each.open = false)")
    submit(page)
    page.locator("[data-problem]:visible, [data-fault]:visible, [data-found]").get_by_text(message).wait_for()
    assert (sent, site.rows(Dataset)) == ([], [])
    page.errors.clear()


def test_the_form_is_usable_at_every_width_and_in_every_colour_scheme(page, tmp_path):
    for (width, scheme), opened in itertools.product(WINDOWS, (False, True)):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.locator("[data-more]").evaluate("(each, open) => (each.open = open)", opened)
        assert barriers(page) == []
