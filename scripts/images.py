"""The images of README.md and the guides, each with the script that draws it and with the facts that it shows."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
SCRIPTS = {
    "plan.png": "scripts.screenshots --only plan",
    "real_and_synthetic.png": "scripts.example_images",
    "release.png": "scripts.screenshots --only release",
}


def save(image: Image.Image, name: str, shows: object) -> None:
    """Save an image with facts, as JSON, which tests compare with the code."""
    facts = PngInfo()
    facts.add_text("shows", json.dumps(shows))
    image.save(FOLDER / name, optimize=True, pnginfo=facts)
