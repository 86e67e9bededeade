"""Every state, kind and failure that can be shown has words."""

import pytest

from obscura.wire import budgets as units
from obscura.wire import words
from obscura.wire.wording import ADJACENCIES, EARLY_ENDS, odds_sentence
from service import wording
from service.db.job_tables import FailureCode
from service.identity.decisions import EXPIRED


@pytest.mark.parametrize(
    ("table", "kinds"),
    [
        (wording.JOB_STATES, words.JobState),
        (wording.ENTRIES, words.EntryKind),
        (wording.HOLDS, words.HoldState),
        (wording.ADMISSIONS, words.Admission),
        (wording.DECISIONS, words.DecisionAction),
        (wording.DECISION_STATES, {*words.DecisionState, EXPIRED}),
        (EARLY_ENDS, words.EarlyEnd),
        (ADJACENCIES, words.Adjacency),
        (units.UNIT_WORDS, words.Unit),
    ],
)
def test_everything_that_can_be_shown_has_words(table, kinds):
    assert set(table) == set(kinds)


def test_every_failure_has_a_message():
    assert all(code.message.endswith(".") for code in FailureCode)
    assert FailureCode("worker_lost") is FailureCode.WORKER_LOST


def test_odds_sentences_name_the_unit_and_how_often_they_may_fail():
    assert "an image was used" in odds_sentence(0.775, 1e-5, "record")
    assert "a person's images" in odds_sentence(0.775, 1e-5, "subject")
    assert "except with a probability of 1 in 100,000." in odds_sentence(0.775, 1e-5, "record")
    assert "protects almost nothing" in odds_sentence(0.999999, 1e-5, "record")
