"""What people will see, in words: of every row that was looked at, and of a plan, which says it first."""

import pytest

from privacy.accounting.filter import open_filter
from privacy.plans.moments import SEEN
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import build_plan

TEN, NINE = tuple("abcdefghij"), tuple("abcdefghi")
ROWS = [  # those of docs/research/previews.md
    (TEN, 28, 1, 1437, 1, "blurred outlines"),
    (TEN, 28, 1, 1437, 10, "shapes"),
    (TEN, 28, 1, 3000, 10, "shapes"),
    (TEN, 28, 1, 60_000, 1, "shapes"),
    (NINE, 64, 3, 3178, 0.4, "nothing but colour"),
    (NINE, 64, 3, 3178, 1, "nothing but colour"),
    (NINE, 64, 3, 3178, 2, "colours and outlines"),
    (NINE, 64, 3, 3178, 3, "colours and outlines"),
    (NINE, 64, 3, 3178, 10, "colours and outlines"),
    (NINE, 64, 3, 1903, 4, "colours and outlines"),
    (TEN, 32, 3, 50_000, 10, "colours and outlines"),
]


@pytest.mark.parametrize(("classes", "side", "channels", "records", "epsilon", "seen"), ROWS)
def test_a_plan_says_first_what_was_seen(classes, side, channels, records, epsilon, seen):
    account = open_filter(float(epsilon), 1e-5)
    facts = PublicFacts(classes, side, side, channels, records, "record")
    plan = build_plan("moments", {}, account, account.capacity_nano, facts)
    assert plan.facts["what_people_see"] == seen
    assert plan.notes[0] == SEEN[seen]


def test_what_noise_drowns_is_called_drowned_alone():
    account = open_filter(0.1, 1e-5)
    facts = PublicFacts(NINE, 64, 64, 3, 300, "record")
    plan = build_plan("moments", {}, account, account.capacity_nano, facts)
    assert plan.notes[0].startswith("Noise drowns most")
    assert "what_people_see" not in plan.facts
