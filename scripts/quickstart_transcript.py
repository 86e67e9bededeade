"""Run `obscura quickstart` on 1,400 real pictures of mixed sizes, and write what it says into docs/quickstart.md.

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
BLOCK = re.compile(r"(?<=```text\n).*?(?=```)", re.DOTALL)


def write_digits(folder: Path) -> None:
    """Write one folder of PNG files for each digit."""
    digits, rng = load_digits(), np.random.default_rng(0)
    for number in range(PICTURES):
        place = folder / str(digits.target[number])
        place.mkdir(parents=True, exist_ok=True)
        width, height = (int(side) for side in rng.integers(24, 49, 2))
        picture = Image.fromarray(np.round(digits.images[number] * (255 / 16)).astype(np.uint8))
        picture.resize((width, height), Image.Resampling.BICUBIC).save(place / f"{number:04d}.png")


def run(place: Path) -> str:
    """Run the command in an empty folder and return what a person sees, without how far the jobs were at a time."""
    write_digits(place / "digits")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OBSCURA_")}
    command = [sys.executable, "-P", "-m", "service.cli", "quickstart", "digits", "--yes"]
    ran = subprocess.run(
        command, cwd=place, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    shown = "$ obscura quickstart digits --yes\n" + ran.stdout
    if ran.returncode:
        raise RuntimeError(shown)
    return re.sub(r"^(training|sampling) .*\n", "", shown, flags=re.MULTILINE)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        shown = run(Path(name))
        seconds = time.monotonic() - began
    PAGE.write_text(BLOCK.sub(lambda _: shown, PAGE.read_text("utf-8"), count=1), "utf-8")
    sys.stdout.write(f"{PAGE.name}: {seconds:.0f} s, with the writing of the pictures\n")


if __name__ == "__main__":
    main()
