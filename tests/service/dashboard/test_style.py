"""Colours that can be told apart."""

import re
from pathlib import Path

import pytest

import service.dashboard

STYLE = Path(service.dashboard.__file__).parent / "static" / "dashboard.css"


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_meet_wcag_aa_in_both_schemes(scheme):
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in STYLE.read_text().split("@media")[:2]
    )
    colours = light | (dark if scheme == "dark" else {})
    text = [(ink, ground) for ink in ("ink", "soft", "accent") for ground in ("paper", "raised", "wash")]
    text += [("accent-ink", "accent"), *((name, f"{name}-wash") for name in ("good", "bad", "busy", "warn"))]
    for ink, ground in text:
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    shapes = [("edge", "paper"), ("edge", "raised"), ("focus", "paper"), ("focus", "raised"), ("spent", "left-base")]
    shapes += [("spent", "raised"), ("held-mark", "held-base"), ("left-mark", "left-base")]
    for shape, ground in shapes:
        minimum = 2.0 if shape == "left-mark" else 3.0  # the dots are texture; the bar's edge and text carry "left"
        assert contrast(colours[shape], colours[ground]) >= minimum, (shape, ground)
