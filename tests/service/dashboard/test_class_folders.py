"""One layout of class folders: the reader, the command line and the browser's script agree on the same archives."""

import itertools
import json
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest

from obscura.preparing.choices import Choices
from obscura.preparing.folders import base_of
from obscura.preparing.trees import folders, open_archive
from obscura.wire.uploads import Fault, Refused, class_paths, in_order, is_junk_path
from service import dashboard
from tests.pictures import archive
from tests.service.ingest.conftest import PICTURE, declare, ingest  # noqa: F401  fixtures

SCRIPT = Path(dashboard.__file__).parent / "static" / "class_folders.js"
JUNK = ["__MACOSX/._x", "__MACOSX/digits/0/._a.png", ".DS_Store", "digits/.DS_Store", "digits/0/Thumbs.db"]
JUNK += ["digits/1/desktop.ini", "digits/Icon\r", ".git/config"]
# Files of an archive, the classes that they show, and whether subjects are declared.
LAYOUTS = {
    "plain": (["0/a.png", "1/a.png"], "0 1", False),
    "a wrapping folder": (["digits/0/a.png", "digits/1/a.png"], "0 1", False),
    "three wrapping folders": (["a/b/digits/0/a.png", "a/b/digits/1/a.png"], "0 1", False),
    "a wrapping folder and junk": (["digits/0/a.png", "digits/1/a.png", *JUNK], "0 1", False),
    "backslashes": (["digits\\0\\a.png", "digits\\1\\a.png", "digits\\Thumbs.db"], "0 1", False),
    "a wrapping folder named like a class": (["cat/cat/a.png", "cat/dog/a.png"], "cat dog", False),
    "one class in a wrapping folder": (["pets/cat/a.png"], "cat", False),
    "one class": (["cat/a.png"], "cat", False),
    "empty folders": (["empty/", "digits/", "digits/0/a.png", "digits/1/", "digits/1/a.png"], "0 1", False),
    "decomposed names": (
        ["Tie\u0308re/Ba\u0308r/a.png", "Tie\u0308re/Ma\u0308use/b.png"],
        "B\u00e4r M\u00e4use",
        False,
    ),
    "names in other scripts": (["画像/猫/a.png", "画像/犬/a.png", "画像/🐦/a.png"], "犬 猫 🐦", False),
    "numbers": (["x/10/a.png", "x/2/a.png", "x/01/a.png"], "01 2 10", False),
    "subjects": (["cat/p1/a.png", "dog/p1/a.png"], "cat dog", True),
    "subjects in a wrapping folder": (["data/cat/p1/a.png", "data/dog/p2/a.png", *JUNK], "cat dog", True),
    "subjects of one class": (["cat/p1/a.png", "cat/p2/a.png"], "cat", True),
    "subjects in two wrapping folders": (["x/y/cat/p1/a.png", "x/y/cat/p2/a.png", "x/y/dog/p/a.png"], "cat dog", True),
    "a class name around classes of subjects": (["cat/cat/p1/a.png", "cat/dog/p2/a.png"], "cat dog", True),
}
# Files, classes, subjects, and the fault.
REFUSED = [
    (["cat/p1/a.png", "dog/p2/a.png"], "cat dog", False, Fault.SUBJECTS_UNEXPECTED),
    (["cat/p1/a.png", "cat/p2/a.png"], "cat", False, Fault.SUBJECTS_UNEXPECTED),
    (["data/cat/a.png", "data/dog/a.png"], "cat dog", True, Fault.SUBJECTS_ABSENT),
    (["cat/a.png"], "cat", True, Fault.SUBJECTS_ABSENT),
    (["cat/a.png", "cat/p1/b.png"], "cat dog", True, Fault.LAYOUT),
    (["cat/p1/x/y/a.png"], "cat dog", True, Fault.LAYOUT),
    (["a.png"], "cat dog", True, Fault.LAYOUT),
    (["cat/a.png", "digits/readme.txt", "b.png"], "cat", False, Fault.LAYOUT),
    (["data/cat/a.png", "data/b.png"], "cat", False, Fault.LAYOUT),
    (["x/cat/a.png", "y/cat/b.png"], "cat", False, Fault.LAYOUT),
    (["cat/../dog/a.png"], "cat", False, Fault.ARCHIVE_PATH),
    (["cat\\..\\..\\a.png"], "cat", False, Fault.ARCHIVE_PATH),
    (["C:\\cat\\a.png"], "cat", False, Fault.ARCHIVE_PATH),
    (["\\cat\\a.png"], "cat", False, Fault.ARCHIVE_PATH),
    (["__MACOSX/cat/a.png", ".cat/a.png"], "cat", False, Fault.EMPTY),
]


def in_browser(cases: list[tuple[list[str], list[str], bool]]) -> list[dict[str, object]]:
    program = f"{SCRIPT.read_text()}\nconst cases = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
    program += "console.log(JSON.stringify(cases.map((each) => classFolders(...each))));"
    done = subprocess.run(["node", "-e", program], input=json.dumps(cases), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def in_python(names: list[str], classes: list[str], subjects: bool) -> dict[str, object]:
    """What the reader's functions say of names that its rules for single names have passed."""
    kept = [name for name in names if not name.endswith("/") and not is_junk_path(name)]
    try:
        paths = class_paths(kept, classes, subjects=subjects)
    except Refused as refused:
        return {"fault": refused.fault.value}
    return {"classes": list(in_order(path[0] for path in paths)), "wrapped": paths[0] != kept[0].split("/")}


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@pytest.mark.parametrize(("names", "classes", "subjects"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_reader_takes_it(ingest, names, classes, subjects):  # noqa: F811
    members = [(name, b"" if name.endswith("/") else b"x" if is_junk_path(name) else PICTURE) for name in names]
    facts = {"classes": tuple(classes.split()), "subjects_declared": 9 if subjects else None}
    assert ingest(archive(*members), **facts) == "ok"


@pytest.mark.parametrize(("names", "classes", "subjects"), LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("stated", [False, True])
def test_the_command_line_finds_the_same_class_folders(tmp_path, names, classes, subjects, stated):
    members = [(name, b"" if name.endswith("/") else PICTURE) for name in names]
    (tmp_path / "upload.zip").write_bytes(archive(*members))
    tree = open_archive(tmp_path / "upload.zip")
    choices = Choices(classes=tuple(classes.split()) if stated else None)
    base, _ = base_of(tree, choices, subjects=subjects)
    found = {unicodedata.normalize("NFC", name) for name in folders(tree, base)}
    assert in_order(found) == tuple(classes.split())


@needs_node
@pytest.mark.parametrize("stated", [False, True])
def test_the_browser_finds_the_same_class_folders(stated):
    cases = [(names, classes.split() if stated else [], subjects) for names, classes, subjects in LAYOUTS.values()]
    found = in_browser(cases)
    assert [each.get("classes") for each in found] == [classes.split() for _, classes, _ in LAYOUTS.values()]


@needs_node
def test_the_browser_refuses_as_the_reader_does(ingest):  # noqa: F811
    cases = [(names, classes.split(), subjects) for names, classes, subjects, _ in REFUSED]
    faults = [fault.value for *_, fault in REFUSED]
    assert [each.get("fault") for each in in_browser(cases)] == faults
    for (names, classes, subjects), fault in zip(cases, faults, strict=True):
        facts = {"classes": tuple(classes), "subjects_declared": 9 if subjects else None}
        assert ingest(archive(*((name, PICTURE) for name in names)), **facts) == fault


@needs_node
def test_browser_and_reader_agree_on_every_small_archive():
    """All archives of two files whose paths are made of few names, with and without declared classes and subjects."""
    words = ["a", "cat", "dog", ".x", "\uff61", "\U0001f600", "10", "9"]
    folders_of = [
        *(itertools.product(words[:3], repeat=depth) for depth in range(4)),
        itertools.product(words, repeat=2),
    ]
    paths = ["/".join([*parts, "1.png"]) for parts in itertools.chain(*folders_of)]
    declared = [[], ["cat"], ["cat", "dog"]]
    cases = [
        ([one, other], classes, subjects)
        for one, other in itertools.combinations(sorted(set(paths)), 2)
        for classes in declared
        for subjects in (False, True)
        if not (is_junk_path(one) and is_junk_path(other))
    ]
    wrong = [
        (case, theirs, ours)
        for case, theirs, ours in zip(cases, in_browser(cases), itertools.starmap(in_python, cases), strict=True)
        if theirs != ours
    ]
    assert (len(cases) > 10_000, wrong[:3]) == (True, [])
