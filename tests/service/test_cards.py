"""Cards: a YAML header that is read back, escaped text, folders of classes, and words for all that can be shown."""

import pytest
import yaml

from obscura.wire import budgets as units
from obscura.wire import words
from obscura.wire.wording import ADJACENCIES, EARLY_ENDS, odds_sentence
from service import wording
from service.cards import folder_names, guarantee, one_line, write_card
from service.db.job_tables import FailureCode
from service.identity.decisions import EXPIRED

CARD = {"epsilon": 0.5, "delta": 1e-6, "unit": "subject", "adjacency": "add_remove"}


def test_the_header_is_yaml_whatever_the_names_are():
    front = {"pretty_name": "a: b # c\u2028\U0001f600 'quoted' \"twice\"", "feature": {"0": "no", "1": "---"}}
    card = write_card(front, "a\n# b", ["text"])
    header, body = card.removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(header) == front
    assert body == "# a # b\n\ntext\n"


def test_the_guarantee_names_epsilon_delta_unit_and_adjacency():
    text = "\n".join(guarantee(CARD))
    assert "(0.5, 1e-06)-differentially private: adding or removing all records of one subject" in text
    assert "| 0.5 | 1e-06 | subject | add_remove |" in text
    assert "ended early" not in text
    early = {**CARD, "incomplete": {"made": 3, "planned": 10}}
    assert "ended early: 3 of 10 planned noisy releases" in "\n".join(guarantee(early))


def test_text_can_be_neither_markup_nor_a_line_of_its_own():
    assert one_line("a|b\n<i> `c` [d]\\") == "a\\|b \\<i\\> \\`c\\` \\[d\\]\\\\"


DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}


def test_folders_are_harmless_distinct_and_in_label_order():
    assert folder_names(("0", "1", "2")) == ("0", "1", "2")
    assert folder_names(("T-shirt/top", "../../etc/passwd", "a b")) == ("0_T-shirt_top", "1_etc_passwd", "2_a_b")
    assert folder_names(("b", "a")) == ("0_b", "1_a")
    assert folder_names(("Cat", "cat")) == ("0_Cat", "1_cat")
    assert folder_names(("\x00", "日本", "CON")) == ("0_class", "1_class", "2_CON")
    assert folder_names(("con", "sick")) == ("0_con", "1_sick")
    for device in ("AUX", "com1", "lpt9", "nul", "prn.", "CON "):
        assert folder_names((device, "z"))[0].lower().strip("_ .") not in DEVICES
    assert folder_names(("com", "confusion", "console")) == ("com", "confusion", "console")
    many = folder_names(tuple(f"c{label}" for label in range(12)))
    assert list(many) == sorted(many)
    assert many[10] == "10_c10"


@pytest.mark.parametrize(
    ("table", "kinds"),
    [
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
