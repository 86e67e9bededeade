"""A refusal says what is left and what can be done instead."""

from service.errors import InsufficientBudget


def test_a_refusal_may_name_a_release_later():
    error = InsufficientBudget(
        account="patients",
        requested_nano=4,
        left_nano=2,
        capacity_nano=10,
        spent_nano=7,
        held_nano=1,
        requested_epsilon=2.0,
        left_epsilon=1.2,
        limit_epsilon=8.0,
        spent_epsilon=6.3,
        held_epsilon=0.5,
        affordable_epsilon=1.2,
    )
    assert error.message.startswith(
        "This job needs epsilon 2.0. Account *patients* has 1.2 left of 8.0 (6.3 spent, 0.5 held"
    )
    named = error.suggesting("rel_a")
    assert named.message.endswith("You can: ask for 1.2, sample release *rel_a* again at no cost, or ask the owner.")
    assert named.numbers == {**error.numbers, "release_id": "rel_a"}
    assert error.release_id is None
