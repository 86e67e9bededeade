"""Run `obscura quickstart` and the six lines of Python beside it on 1,400 real pictures of mixed sizes, and write what
they say into docs/quickstart.md.

    python scripts/quickstart_transcript.py

The pictures are scikit-learn's handwritten digits, enlarged to sizes between 24 and 48 pixels.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

PAGE = Path(__file__).resolve().parents[1] / "docs" / "quickstart.md"
PICTURES = 1400
SHOWN = re.compile(r"(?<=```text\n).*?(?=```)", re.DOTALL)  # of the command, and of the program
PROGRAM = re.compile(r"(?<=```python\n).*?(?=```)", re.DOTALL)


def write_digits(folder: Path) -> None:
    """Write one folder of PNG files for each digit."""
    digits, rng = load_digits(), np.random.default_rng(0)
    for number in range(PICTURES):
        place = folder / str(digits.target[number])
        place.mkdir(parents=True, exist_ok=True)
        width, height = (int(side) for side in rng.integers(24, 49, 2))
        picture = Image.fromarray(np.round(digits.images[number] * (255 / 16)).astype(np.uint8))
        picture.resize((width, height), Image.Resampling.BICUBIC).save(place / f"{number:04d}.png")


def run(place: Path, *command: str) -> str:
    """Run a command in a folder that has the pictures; return what a person sees, without how far jobs were."""
    write_digits(place / "digits")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OBSCURA_")}
    ran = subprocess.run(
        [sys.executable, *command], cwd=place, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(ran.stdout)
    return re.sub(r"^(training|sampling) .*\n", "", ran.stdout, flags=re.MULTILINE)


def run_command(place: Path) -> str:
    """Run `obscura quickstart`."""
    words = ("quickstart", "digits", "--at-most", "2000", "--size", "28", "--grey", "--yes")
    return f"$ obscura {' '.join(words)}\n" + run(place, "-P", "-m", "obscura.cli", *words)


def run_program(place: Path) -> str:
    """Run the lines of Python that stand on the page."""
    (program,) = PROGRAM.findall(PAGE.read_text("utf-8"))
    return run(place, "-P", "-c", program)


def main() -> None:
    shown: list[str] = []
    for act in (run_command, run_program):
        with tempfile.TemporaryDirectory() as name:
            began = time.monotonic()
            shown.append(act(Path(name)))
            seconds = time.monotonic() - began
        sys.stdout.write(f"{act.__name__}: {seconds:.0f} s, with the writing of the pictures\n")
    texts = iter(shown)
    PAGE.write_text(SHOWN.sub(lambda _: next(texts), PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
