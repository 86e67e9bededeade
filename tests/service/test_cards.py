"""Cards: a YAML header that comes back as it was written, and text that stays text."""

import yaml

from service.cards import class_label, guarantee, one_line, write_card

CARD = {"epsilon": 0.5, "delta": 1e-6, "unit": "subject", "adjacency": "add_remove"}


def test_the_header_is_yaml_whatever_the_names_are():
    front = {"pretty_name": "a: b # c\u2028\U0001f600 'quoted' \"twice\"", "feature": class_label(["no", "1", "---"])}
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
    assert "ended early: 3 of 10 planned releases" in "\n".join(guarantee(early))


def test_text_can_be_neither_markup_nor_a_line_of_its_own():
    assert one_line("a|b\n<i> `c` [d]\\") == "a\\|b \\<i\\> \\`c\\` \\[d\\]\\\\"
