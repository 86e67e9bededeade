"""`client.datasets.push` against the real service: folders as people have them go in, and nothing stays beside them."""

import tempfile

import pytest

from obscura.client import BrokenImages, PackingError
from tests.obscura.preparing.conftest import colours, motley  # noqa: F401  fixtures


def test_a_folder_goes_in_as_it_is_and_is_declared_as_stated(served, client, motley, tmp_path, monkeypatch):  # noqa: F811
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    account_id = served.account()["id"]
    before = sorted(motley.rglob("*"))
    said: list[str] = []
    dataset = client.datasets.push(motley, account_id=account_id, at_most=2000, say=said.append)
    assert (dataset.state, dataset.name, dataset.visibility) == ("ready", "motley", "private")
    assert (dataset.height, dataset.width, dataset.channels, dataset.classes) == (32, 32, 3, ["cat", "dog"])
    assert said[0].startswith("13 images: 2 cropped to 32 x 32, 11 scaled to 32 x 32, 1 laid on white, ")
    assert said[1] == 'Stays here: images by class: "cat" 7, "dog" 6.'
    assert said[-1].startswith('Declaring, and thereby making public: classes "cat", "dog";')
    assert said[-1].endswith("at most 2000 records, each protected by itself.")
    assert [found.id for found in client.datasets()] == [dataset.id]
    assert sorted(motley.rglob("*")) == before
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("size", ["8", "128", "8x128", "37x61"])
def test_sizes_of_any_aspect(served, client, motley, size):  # noqa: F811
    dataset = client.datasets.push(motley, public=True, size=size, grey=True)
    width, _, height = size.partition("x")
    assert (dataset.state, dataset.width, dataset.height) == ("ready", int(width), int(height or width))
    assert (dataset.channels, dataset.records_declared) == (1, 13)


def test_broken_images_are_named_to_their_owner_and_to_nobody_else(served, client, motley):  # noqa: F811
    (motley / "dog" / "CANARY.jpg").write_bytes((motley / "cat" / "wide.jpeg").read_bytes()[:300])
    with pytest.raises(BrokenImages, match=r"dog/CANARY\.jpg") as error:
        client.datasets.push(motley, public=True)
    assert (error.value.count, error.value.flags) == (1, ("--skip-broken",))
    assert client.datasets.push(motley, public=True, skip_broken=True).state == "ready"
    stored = [file.read_bytes() for file in served.data_dir.rglob("*") if file.is_file()]
    assert not any(b"CANARY" in content for content in stored)


def test_private_or_public_and_not_both(served, client, motley):  # noqa: F811
    for whose in ({}, {"account_id": served.account()["id"], "public": True}):
        with pytest.raises(PackingError, match="not both"):
            client.datasets.push(motley, **whose)
    with pytest.raises(PackingError, match="unit is the subject"):
        client.datasets.push(motley, public=True, subjects_at_most=3)
