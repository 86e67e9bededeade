"""Run the examples of tutorials/command-line.md and how-to/medical-images.md, and write their output into the pages.

    python -m scripts.quickstart_transcript

`obscura quickstart` and the Python program run on 6,000 drawn digits, 0 to 4, of 24 to 48 pixels; `obscura quickstart`
also runs on 4,000 synthetic DICOM files of 12 bits. So many are recognisable at ε = 1.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.intake.builders.volumes import encoded
from models.stand_ins import generated

_DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, SCANS_PAGE = _DOCS / "tutorials" / "command-line.md", _DOCS / "how-to" / "medical-images.md"
PICTURES = 6000
SCANS, PATIENTS, SCAN_SIDE = 4000, 1400, 40
SHOWN = re.compile(r"(?<=```text\n).*?(?=```)", re.DOTALL)  # the output of the command and of the program
PROGRAM = re.compile(r"(?<=```python\n).*?(?=```)", re.DOTALL)


def write_digits(folder: Path) -> None:
    digits, rng = generated(tuple("01234"), count=PICTURES, shape=(1, 28, 28)), np.random.default_rng(0)
    for number, (image, digit) in enumerate(zip(digits.images, digits.labels, strict=True)):
        place = folder / str(digit)
        place.mkdir(parents=True, exist_ok=True)
        sides = tuple(rng.integers(24, 49, 2).tolist())
        Image.fromarray(image).resize(sides, Image.Resampling.BICUBIC).save(place / f"{number:04d}.png")


def write_scans(folder: Path) -> None:
    """Write DICOM files without a suffix into two class folders, up to three per patient."""
    rng = np.random.default_rng(0)
    down, across = (axis / SCAN_SIDE - 0.5 for axis in np.mgrid[:SCAN_SIDE, :SCAN_SIDE])
    for number in range(SCANS):
        sick = number % 2
        shade = np.exp(-8 * (down**2 + across**2)) + 0.5 * sick * (down > 0.1) + rng.normal(0, 0.05, down.shape)
        pixels = (np.clip(shade / 1.5, 0, 1) * 4095).astype("<u2")
        path = folder / ("effusion" if sick else "normal") / f"IM{number:04d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        patient = f"PATIENT{number // 2 % PATIENTS:04d}"
        path.write_bytes(encoded(pixels, PatientID=patient, BurnedInAnnotation="NO"))


def run(place: Path, *command: str, stops: bool = False) -> str:
    """Run a command in a folder; return its output with the usual port and without progress.

    Raise RuntimeError unless the command succeeds or, with `stops`, fails.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OBSCURA_")}
    ran = subprocess.run(
        [sys.executable, *command], cwd=place, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    if bool(ran.returncode) is not stops:
        raise RuntimeError(ran.stdout)
    shown = re.sub(r"^(training|sampling): .*\n", "", ran.stdout, flags=re.MULTILINE)
    return re.sub(r"http://127\.0\.0\.1:\d+", "http://127.0.0.1:8420", shown)


def run_command(place: Path) -> str:
    words = ("quickstart", "digits", "--at-most", "6000", "--size", "28", "--grey", "--yes")
    write_digits(place / "digits")
    output = run(place, "-P", "-m", "obscura.cli", *words)
    return f"$ obscura {' '.join(words)}\n{output}"


def run_program(place: Path) -> str:
    (program,) = PROGRAM.findall(PAGE.read_text("utf-8"))
    write_digits(place / "digits")
    return run(place, "-P", "-c", program)


def run_scans(place: Path) -> str:
    """Run `obscura quickstart` on DICOM files, and again with the two flags that its error names."""
    write_scans(place / "scans")
    shown = ""
    for bounds in (("--at-most", "6000"), ("--at-most", "6000", "--subjects-at-most", "2000")):
        words = ("quickstart", "scans", *bounds, "--yes")
        output = run(place, "-P", "-m", "obscura.cli", *words, stops=len(bounds) == 2)
        shown += f"$ obscura {' '.join(words)}\n{output}"
    return shown


def main() -> None:
    shown: list[str] = []
    for act in (run_command, run_program, run_scans):
        with tempfile.TemporaryDirectory() as name:
            shown.append(act(Path(name)))
    texts = iter(shown)
    for page in (PAGE, SCANS_PAGE):
        page.write_text(SHOWN.sub(lambda _: next(texts), page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
