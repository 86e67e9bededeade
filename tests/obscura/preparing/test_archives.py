"""Archives as trees: names, what is refused, and that large packed tars are not taken into memory."""

import io
import tarfile
from pathlib import Path

import pytest

from obscura.errors import Unreadable
from obscura.preparing import PackingError
from obscura.preparing.trees import FolderTree, TarTree, all_files, open_archive
from tests.pictures import archive, write_files

FILES = {"a/1.png": b"one", "a/b/2.png": b"two", "3.txt": b"three"}


def packed(folder: Path, name: str, files: dict[str, bytes] = FILES) -> Path:
    path = folder / name
    if name.endswith(".zip"):
        path.write_bytes(archive(*files.items()))
        return path
    with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as tar:
        for member, data in files.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("name", ["folder", "x.zip", "x.tar", "x.tar.gz", "x.tgz"])
def test_an_archive_is_a_folder(tmp_path, name):
    tree = FolderTree(write_files(tmp_path, FILES)) if name == "folder" else open_archive(packed(tmp_path, name))
    assert (tree.folders(""), tree.files(""), tree.folders("a")) == (["a"], ["3.txt"], ["b"])
    assert tree.files("a/b") == ["2.png"]
    assert sorted(all_files(tree)) == ["3.txt", "a/1.png", "a/b/2.png"]
    assert tree.read("a/b/2.png") == b"two"
    with tree.open("a/1.png") as file:
        assert (file.seek(1), file.read()) == (1, b"ne")
    with pytest.raises(Unreadable):
        tree.read("a/none.png")


@pytest.mark.parametrize("name", ["x.zip", "x.tar"])
@pytest.mark.parametrize("member", ["/etc/1.png", "a/../../1.png", "C:/1.png"])
def test_names_that_lead_out_are_refused(tmp_path, name, member):
    with pytest.raises(PackingError, match="leads out of it"):
        open_archive(packed(tmp_path, name, {member: b"one"}))


def test_a_large_packed_tar_is_not_taken_into_memory(tmp_path):
    with pytest.raises(PackingError, match="decompress it"):
        TarTree(packed(tmp_path, "x.tar.gz", {"a.png": bytes(2000)}), 1000)
    assert TarTree(packed(tmp_path, "x.tar", {"a.png": bytes(2000)}), 1000).files("") == ["a.png"]


def test_what_is_no_archive(tmp_path):
    write_files(tmp_path, {"a.png": b"\x89PNG", "a.tar": b"no tar"})
    assert open_archive(tmp_path / "a.png") is None
    with pytest.raises(PackingError, match="cannot be read as a tar"):
        open_archive(tmp_path / "a.tar")
