"""The files of a release over HTTP: what was trained, and what goes with a generator, made when it is asked for."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from models.portable.dcgan import DcganConfig, DcganGenerator
from models.released import save_released
from obscura.wire.words import ReleaseKind
from service.db.job_tables import Release
from service.storage.interface import digest_directory

MADE = ("README.md", "load_generator.py")
CARD = {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "adjacency": "add_remove", "recipe": "dpgan"}


@pytest.fixture
def release(served, released) -> str:
    """A release whose files hold a real generator and its card, by its id."""
    release_id = str(released()[1])
    folder = served.data_dir / "releases" / release_id
    config = DcganConfig(classes=2, channels=1, height=4, width=4, latent=3, features=4)
    save_released(DcganGenerator(config), folder)
    (folder / "privacy_card.json").write_text("{}\n")
    served.change(Release, release_id, card=CARD, name="pictures | <b> · dpgan")
    return release_id


def fetch(served: Any, release_id: str, name: str, **headers: str) -> Any:
    return served.client("read").get(f"/v1/releases/{release_id}/files/{name}", headers=headers)


def test_what_is_made_is_the_same_every_time_and_leaves_the_release_as_it_is(served, release):
    folder: Path = served.data_dir / "releases" / release
    before = digest_directory(folder)
    for name in MADE:
        first, again = fetch(served, release, name), fetch(served, release, name)
        assert (first.status_code, first.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert first.content == again.content
        assert first.headers["etag"] == f'"{hashlib.sha256(first.content).hexdigest()}"'
        assert fetch(served, release, name, **{"If-None-Match": first.headers["etag"]}).status_code == 304
    assert digest_directory(folder) == before


def test_the_model_card_states_the_guarantee_and_how_to_draw(served, release):
    header, body = fetch(served, release, "README.md").text.removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(header) == {
        "model_name": "pictures | <b> · dpgan",
        "library_name": "pytorch",
        "pipeline_tag": "unconditional-image-generation",
        "tags": ["synthetic", "differential-privacy"],
    }
    assert body.startswith("# pictures \\| \\<b\\> · dpgan\n")
    for said in ("| 1.0 | 1e-05 | record | add_remove |", "DCGAN", "`dpgan`", "4 x 4 pixels, grey, 2 classes"):
        assert said in body
    assert "python load_generator.py --count 100 --out images/" in body
    assert "| 1 | dog |" in body


def test_the_program_is_of_this_releases_network_and_classes(served, release):
    program = fetch(served, release, "load_generator.py").text
    assert "class DcganGenerator" in program
    assert "CLASSES = ('cat', 'dog')" in program


@pytest.mark.parametrize("name", MADE)
def test_only_generators_that_are_known_have_these_files(served, release, name):
    description = served.data_dir / "releases" / release / "generator.json"
    written = description.read_text()
    description.unlink()
    assert served.read(f"releases/{release}/files/{name}", status=404)["code"] == "not_found"
    description.write_text(written)
    served.change(Release, release, kind=ReleaseKind.CLASSIFIER)
    assert "a generator has" in served.read(f"releases/{release}/files/{name}", status=404)["detail"]


def test_a_network_of_another_time_has_no_program(served, release):
    description = served.data_dir / "releases" / release / "generator.json"
    description.write_text(description.read_text().replace('"dcgan"', '"stylegan"'))
    assert "stylegan" in served.read(f"releases/{release}/files/load_generator.py", status=404)["detail"]


def test_the_client_saves_all_of_them(served, release, client, tmp_path):
    saved = client.release(release).save_weights(tmp_path / "weights")
    names = {"generator.json", "generator.safetensors", "privacy_card.json", *MADE}
    assert {path.name for path in saved} == {path.name for path in (tmp_path / "weights").iterdir()} == names


def test_a_name_that_is_no_file_is_answered_with_those_that_are(served, release):
    assert "load_generator.py" in served.read(f"releases/{release}/files/release.json", status=404)["detail"]
