"""What people will see of images drawn from class moments, in words: from what was declared and the budget alone.

An accuracy does not tell it: a classifier finds class means under static, and people do not. The words are those of
grids that were looked at; tests/privacy/plans/moments/test_appearance.py has the rows that each threshold stands on.
"""

from __future__ import annotations

from collections.abc import Mapping

from privacy.plans.plan import PublicFacts

# Signal q (`privacy.plans.moments.detail.signal`) from which grids were found to show it; see the rows.
SHAPES_FROM = 250.0  # grey: digits at 286 and clothes at 598 can be told by eye
OUTLINES_FROM = 170.0  # colour: pictograms at 176, emoji at 253 and 704; photographs show no more at 9,963
SEEN: Mapping[str, str] = {
    "shapes": "People will see shapes: most pictures can be told by them, but edges are soft and small things missing.",
    "blurred outlines": "People will see blurred outlines: light and dark where a class has them, hardly a thing that "
    "can be named.",
    "colours and outlines": "People will see colours and outlines: blots with the colours and the rough outline of "
    "their class, in which hardly a thing can be named.",
    "nothing but colour": "People will see nothing but colour: blurred patches, in which not a thing can be named.",
}


def what_people_see(facts: PublicFacts, q: float) -> str:
    """Return which of SEEN such images show, where noise does not drown them.

    Args:
        facts: what the owner declared.
        q: declared units of one class in units of the noise, for what the moments cost.
    """
    if facts.channels == 1:
        return "shapes" if q >= SHAPES_FROM else "blurred outlines"
    return "colours and outlines" if q >= OUTLINES_FROM else "nothing but colour"
