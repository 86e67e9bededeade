"""Published folders appear whole or not at all, under names of ours, and hash to what they hold."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.artifacts import (
    digest_directory,
    digest_file,
    directory_of,
    find_file,
    open_regular,
    publish_directory,
    remove_directory,
    staged_directory,
)
from service.errors import Conflict, InvalidInput, NotFound

RELEASE = "rel_" + "b3" * 10


def publish(data_dir: Path, files: dict[str, bytes], identifier: str = RELEASE) -> str:
    with staged_directory(data_dir, identifier) as staging:
        for name, data in files.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_bytes(data)
        return publish_directory(staging, directory_of(data_dir, identifier))


def test_each_kind_of_identifier_has_its_folder(tmp_path):
    tail = "a7" * 10
    kinds = {"ds": "datasets", "job": "jobs", "rel": "releases", "smp": "samples"}
    for prefix, folder in kinds.items():
        assert directory_of(tmp_path, f"{prefix}_{tail}") == tmp_path / folder / f"{prefix}_{tail}"


@given(st.text(max_size=30))
def test_nothing_but_our_identifiers_becomes_a_path(text):
    for identifier in (text, f"rel_{text}", f"{RELEASE}{text}x", f"{text}{RELEASE}x"):
        with pytest.raises(InvalidInput):
            directory_of(Path("data"), identifier)


def test_a_published_folder_has_the_digest_of_its_manifest(tmp_path):
    digest = publish(tmp_path, {"b.json": b"{}", "a/c.bin": b"\0\1"})
    manifest = {"a/c.bin": hashlib.sha256(b"\0\1").hexdigest(), "b.json": hashlib.sha256(b"{}").hexdigest()}
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    assert digest == hashlib.sha256(canonical).hexdigest() == digest_directory(directory_of(tmp_path, RELEASE))
    assert [path.name for path in (tmp_path / "releases").iterdir()] == [RELEASE]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(files=st.dictionaries(st.sampled_from(["a", "b", "c/d", "c/e"]), st.binary(max_size=20), min_size=1))
def test_the_digest_depends_on_names_and_contents_only(tmp_path_factory, files):
    first, second = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    digest = publish(first, files)
    assert publish(second, dict(reversed(files.items()))) == digest
    name = next(iter(files))
    assert publish(second, files | {name: files[name] + b"x"}, "rel_" + "c" * 20) != digest


def test_publishing_again_is_harmless_and_other_content_is_a_conflict(tmp_path):
    digest = publish(tmp_path, {"a": b"1"})
    assert publish(tmp_path, {"a": b"1"}) == digest
    with pytest.raises(Conflict):
        publish(tmp_path, {"a": b"2"})
    assert digest_directory(directory_of(tmp_path, RELEASE)) == digest
    assert [path.name for path in (tmp_path / "releases").iterdir()] == [RELEASE]


def test_an_unfinished_folder_vanishes(tmp_path):
    with staged_directory(tmp_path, RELEASE) as staging:
        (staging / "a").write_bytes(b"1")
    assert list((tmp_path / "releases").iterdir()) == []


def test_links_and_special_files_are_never_published_or_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    with staged_directory(tmp_path, RELEASE) as staging:
        (staging / "link").symlink_to(secret)
        with pytest.raises(InvalidInput):
            publish_directory(staging, directory_of(tmp_path, RELEASE))
        (staging / "link").unlink()
        (staging / "folder").symlink_to(tmp_path, target_is_directory=True)
        with pytest.raises(InvalidInput):
            digest_directory(staging)
        (staging / "folder").unlink()
        os.mkfifo(staging / "pipe")
        with pytest.raises(InvalidInput):
            digest_directory(staging)
        for path in (staging / "pipe", staging, staging / "missing"):
            with pytest.raises(NotFound):
                open_regular(path)
    link = tmp_path / "link"
    link.symlink_to(secret)
    with pytest.raises(NotFound):
        digest_file(link)


def test_files_are_found_by_plain_names_only(tmp_path):
    publish(tmp_path, {"grid.png": b"png", "inner/x": b""})
    assert find_file(tmp_path, RELEASE, "grid.png").read_bytes() == b"png"
    directory = directory_of(tmp_path, RELEASE)
    (directory / "leak.png").symlink_to("/etc/hostname")
    for name in ("leak.png", "../x", "inner", "inner/x", "/etc/hostname", ".", "..", "", "missing", "grid.png\n"):
        with pytest.raises(NotFound):
            find_file(tmp_path, RELEASE, name)


def test_a_folder_reached_through_a_link_is_not_served(tmp_path):
    publish(tmp_path, {"grid.png": b"png"})
    other = "rel_" + "d" * 20
    directory_of(tmp_path, other).symlink_to(directory_of(tmp_path, RELEASE), target_is_directory=True)
    with pytest.raises(NotFound):
        find_file(tmp_path, other, "grid.png")


def test_removing_is_complete_and_repeatable(tmp_path):
    publish(tmp_path, {"a/b": b"1"})
    remove_directory(tmp_path, RELEASE)
    remove_directory(tmp_path, RELEASE)
    assert list((tmp_path / "releases").iterdir()) == []
