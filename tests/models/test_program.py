"""The program that goes with a release draws the service's pixels with torch alone, for every network that there is."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from models.program import PROGRAMS, write_program
from models.released import ReleasedGenerator, save_released
from obscura.cli.app import app
from obscura.wire.provenance import XMP, XMP_KEYWORD
from service.cards import folder_names
from tests.installed import link_packages
from tests.models.checks import filled
from tests.models.test_released import EVERY, affine
from workers.train.drawing import SampleRequest, draw

CLASSES = ("T-shirt/top", "日本 😀 \"quoted\" {0} '''")
FOLDERS = folder_names(CLASSES)
COUNT = 300  # more than a batch
ROOT = Path(__file__).parents[2] / "models"
FUTURE = "from __future__ import annotations\n"
TEXTS = {XMP_KEYWORD: XMP, "obscura": json.dumps({"release_id": "rel_é"}, ensure_ascii=False)}


@pytest.fixture(params=EVERY, ids=lambda make: make.__name__)
def generator(request: pytest.FixtureRequest) -> ReleasedGenerator:
    return filled(request.param())


@pytest.fixture
def handed_over(generator: ReleasedGenerator, tmp_path: Path) -> Path:
    """A folder as somebody has it who downloaded a release's files."""
    folder = tmp_path / "weights"
    folder.mkdir()
    save_released(generator, folder)
    network = json.loads((folder / "generator.json").read_text())
    (folder / "load_generator.py").write_text(
        write_program(network.get("network"), CLASSES, FOLDERS, TEXTS), encoding="utf-8"
    )
    return folder


# Imports torch, and forks for every program: a line of JSON for each, to which its exit status is the answer.
WAITING = """
import json, os, sys, traceback
sys.path.append(sys.argv[1])
import torch
for line in sys.stdin:
    order, status = json.loads(line), 1
    if (pid := os.fork()) == 0:
        try:
            os.chdir(order["folder"])
            for number in (1, 2):
                os.dup2(os.open(order["said"][number - 1], os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
            exec(order["code"], {"__name__": "__main__"})
            status = 0
        except SystemExit as leaving:
            status = leaving.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
Alone = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def run_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    """Run a program with torch, what torch requires and no other package, from an empty folder outside the checkout."""
    packages = link_packages(tmp_path_factory.mktemp("torch_alone") / "packages", "torch")
    assert not {"numpy", "safetensors", "PIL", "models", "service"} & {path.name for path in packages.iterdir()}
    command = [sys.executable, "-I", "-S", "-B", "-W", "ignore", "-c", WAITING, str(packages)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")

    def run(folder: Path, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        elsewhere, said = folder.parent / "empty", [folder.parent / "out", folder.parent / "err"]
        elsewhere.mkdir(exist_ok=True)
        code = f"import sys; sys.path += [{str(folder)!r}]; sys.argv = {[program, *arguments]!r}\n"
        is_file = program.endswith(".py")
        code += f"import runpy; runpy.run_path({program!r}, run_name='__main__')" if is_file else program
        order = {"code": code, "folder": str(elsewhere), "said": [str(path) for path in said]}
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        status = int(process.stdout.readline())
        return subprocess.CompletedProcess(code, status, *(path.read_text("utf-8") for path in said))

    yield run
    process.communicate()


@pytest.mark.slow
def test_the_program_draws_the_services_pixels_with_torch_alone(handed_over, generator, run_alone):
    images, labels = zip(*draw(generator, SampleRequest(COUNT, 7, CLASSES)), strict=True)
    pixels, numbers = np.concatenate(images), np.concatenate(labels)
    out = handed_over.parent / "images"
    program = str(handed_over / "load_generator.py")
    done = run_alone(handed_over, program, "--count", str(COUNT), "--seed", "7", "--out", str(out))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    files = sorted(out.glob("*/*.png"), key=lambda path: path.name)
    assert [path.parent.name for path in files] == [FOLDERS[label] for label in numbers]
    shown = [np.asarray(Image.open(path)).reshape(pixels.shape[1:]) for path in files]
    assert np.array_equal(np.stack(shown), pixels)


def test_one_class_is_drawn_from_python_as_the_service_draws_it(handed_over, generator, run_alone):
    expected, _ = next(draw(generator, SampleRequest(3, 1, CLASSES, (1,))))
    code = (
        "from load_generator import CLASSES, draw, load, png\n"
        "import sys\n"
        "images, labels = next(draw(load(), count=3, seed=1, labels=[1]))\n"
        "assert labels.tolist() == [1, 1, 1]\n"
        "assert not {'numpy', 'safetensors', 'models'} & set(sys.modules)\n"
        "print(ascii((CLASSES, images.tolist())))\n"
    )
    done = run_alone(handed_over, code)
    assert done.returncode == 0, done.stderr
    classes, pixels = ast.literal_eval(done.stdout)
    assert classes == CLASSES
    assert np.array_equal(pixels, expected)


@pytest.mark.parametrize("generator", [affine], indirect=True)
def test_the_program_draws_in_the_services_proportions(handed_over, generator, run_alone):
    request = SampleRequest(8, 1, CLASSES, (1, 0), (3.0, 1.0))
    ((expected, labels),) = draw(generator, request)
    code = (
        "from load_generator import draw, load\n"
        "images, labels = next(draw(load(), count=8, seed=1, labels=[1, 0], proportions=[3, 1]))\n"
        "print((labels.tolist(), images.tolist()))\n"
    )
    drawn, pixels = ast.literal_eval(run_alone(handed_over, code).stdout)
    assert (drawn, labels.tolist()) == ([1, 1, 0, 1, 1, 1, 0, 1],) * 2
    assert np.array_equal(pixels, expected)
    out = handed_over.parent / "uneven"
    asked = ["--count", "8", "--seed", "1", "--class", CLASSES[1], "--proportion", "3", "--class", CLASSES[0]]
    asked += ["--proportion", "1", "--out", str(out)]
    done = run_alone(handed_over, str(handed_over / "load_generator.py"), *asked)
    assert done.returncode == 0, done.stderr
    assert [len(list((out / FOLDERS[label]).glob("*.png"))) for label in (1, 0)] == [6, 2]
    result = CliRunner().invoke(app, ["detect", "--json", str(out)])
    (found,) = json.loads(result.stdout)
    assert (found["images"], found["releases"]) == ({"unsigned": 8}, ["rel_é"]), "marked, but by no key"


@pytest.mark.parametrize("generator", [affine], indirect=True)
def test_wrong_arguments_are_refused_in_words(handed_over, run_alone):
    program, out = str(handed_over / "load_generator.py"), str(handed_over.parent / "images")
    unusable = ["--seed", "-1"], ["--class", "bird"], ["--proportion", "2"]
    for wrong in (["--count", "0"], *(["--count", "1", *each] for each in unusable)):
        done = run_alone(handed_over, program, *wrong, "--out", out)
        assert done.returncode == 2
        assert "error" in done.stderr
    assert not Path(out).exists()


@pytest.mark.parametrize("network", PROGRAMS)
def test_no_name_is_defined_twice_in_a_program_of_whole_files(network):
    text = write_program(network, CLASSES, FOLDERS, TEXTS)
    tree = ast.parse(text)
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    targets = (target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
    names += [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    assert sorted(names) == sorted(set(names))
    pieces = re.split(r"(?m)^from models\.\S+ import .*\n", (ROOT / "portable" / "drawing.py").read_text("utf-8"))
    assert all(piece.replace(FUTURE, "") in text for piece in pieces)


def test_an_unknown_network_has_no_program():
    with pytest.raises(ValueError, match="stylegan"):
        write_program("stylegan", CLASSES, FOLDERS, TEXTS)
