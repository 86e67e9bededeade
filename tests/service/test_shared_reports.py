"""The report on a release as another project reads it: what is public about the release, and nothing of its account."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.reports import _shared_page, shared_part
from tests.service.test_reports import EVALUATION
from tests.workers.evaluation.test_report import CARD, RELEASE, report

OF_ACCOUNT = {"dataset": "the dataset's name", "account": "the account's name", "notes": ("a remark on its delta",)}
OF_ACCOUNT |= {"account_epsilon": 7.4321, "account_sure_at_most": 0.98765, "account_nano": 519_777_111}
OF_ACCOUNT |= {"account_spent_nano": 103_888_222}
TOLD = ["the dataset's", "the account's", "a remark", "7.43", "0.98765", "98.7", "98.8", "519777111", "519,777,111"]
TOLD += ["103888222", "103,888,222", "never to be told"]


@pytest.fixture
def published(tmp_path: Path) -> tuple[bytes, dict[str, Any]]:
    """A page and its data as a training publishes them."""
    page = report(tmp_path, release=replace(RELEASE, **OF_ACCOUNT), technical={"torch": "2.9", "attempts": "3"})
    return page.encode(), json.loads((tmp_path / "report.json").read_text("utf-8"))


def test_the_data_have_the_guarantee_and_what_was_measured_of_synthetic_images_alone(published):
    page, document = published
    for part in document.values():
        part["what a later report may say"] = "never to be told"
    del document["synthetic"]["what a later report may say"]
    shown = shared_part(document)
    said = json.dumps(shown)
    assert [word for word in TOLD if word in said] == []
    assert shown["synthetic"] == document["synthetic"]
    card = ("epsilon", "delta", "unit", "adjacency", "price_nano", "capacity_nano", "assumed_public", "not_covered")
    assert {name: shown["guarantee"][name] for name in card} == {name: CARD[name] for name in card}
    assert shown["release"]["stages"] == document["release"]["stages"]
    assert {name for name, value in shown["technical"].items() if value} == {"torch"}
    assert any(word in page.decode() for word in TOLD), "the page of the own project tells it"


@pytest.mark.parametrize("evaluations", [[], [EVALUATION]])
def test_the_page_has_the_same_sections_without_a_word_of_the_account(published, evaluations):
    page, document = published
    shown = _shared_page(page, shared_part(document), evaluations, ["a", "b"]).decode()
    assert [word for word in TOLD if word in shown] == []
    order = [shown.index(f'id="{part}"') for part in ("guarantee", "synthetic", "usefulness", "technical")]
    assert order == sorted(order)
    assert shown.count("data:image/png") == page.decode().count("data:image/png") > 0
    figures = re.findall('<span class="figure">[^<]+</span>', page.decode())
    assert re.findall('<span class="figure">[^<]+</span>', shown) == figures != []
    assert "<script" not in shown
    assert ("82.1%" in shown) == bool(evaluations)


def test_a_report_from_before_some_facts_were_told_is_shown_without_them(published):
    page, _ = published
    assert "What the synthetic images look like" in _shared_page(page, shared_part({}), [], ["a", "b"]).decode()
    assert "How useful it is" in _shared_page(b"<p>old</p>", shared_part({}), [], ["a", "b"]).decode()
