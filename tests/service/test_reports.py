"""The published report, joined with evaluations, and the part of it that other projects read."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.reports import joined_page, shared_page, shared_part
from tests.workers.evaluation.test_report import CARD, RELEASE, report

BEFORE, AFTER = "<h1>Report</h1>", '<section aria-labelledby="technical"><h2>4.</h2></section>'
PUBLISHED = f"{BEFORE}<!-- usefulness --><p>not measured</p><!-- /usefulness -->{AFTER}".encode()
FACTS = {"dataset": "<held> out", "dataset_id": "ds_x", "train_images": None, "test_images": 1000, "seeds": [0]}
EVALUATION = {
    "id": "evl_x",
    "finished_at": "2030-01-02T03:04:05+00:00",
    "accuracy": {"classifier": 0.8215},
    "accuracy_warm_start_only": None,
    "evaluation": FACTS,
    "confusion": [[9, 1], [3, 7]],
}


def page_of(*evaluations: dict[str, Any], classes: Sequence[str] = ("a", "b")) -> str:
    return joined_page(PUBLISHED, list(evaluations), classes).decode()


def test_without_evaluations_it_is_what_was_published():
    assert page_of() == PUBLISHED.decode()


def test_evaluations_replace_one_section_and_names_are_escaped():
    page = page_of(EVALUATION, classes=("a", "<b>"))
    assert page.startswith(BEFORE)
    assert page.endswith(AFTER)
    assert "82.1%" in page
    assert "not measured" not in page
    assert "1,000 images of the public dataset <strong>&lt;held&gt; out" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "70</td>" in page  # of the second class, in percent


def test_the_latest_on_each_dataset_is_shown_whole_and_the_others_are_listed():
    other = {**EVALUATION, "id": "evl_y", "evaluation": {**FACTS, "dataset": "more", "dataset_id": "ds_y"}}
    older = {**EVALUATION, "id": "evl_z", "accuracy": {"classifier": 0.5}}
    page = page_of(EVALUATION, other, older)
    assert page.count("Share of the images of a true class") == 2
    order = [page.index(part) for part in ("On &lt;held&gt; out", "On more", "Earlier evaluations")]
    assert order == sorted(order)
    assert order[-1] < page.rindex("50%")


def test_the_balanced_accuracy_of_earlier_evaluations_is_listed_too():
    older = {**EVALUATION, "id": "evl_z", "accuracy": {"cnn": 0.99}, "balanced_accuracy": {"cnn": 0.505}}
    page = page_of(EVALUATION, older)
    assert page.index("Earlier evaluations") < page.rindex("50.5%") < page.rindex("99%")


def test_accuracy_stands_beside_guessing_real_images_and_each_class():
    measured = {**EVALUATION, "accuracy": {"cnn": 0.62}, "accuracy_real": 0.934}
    page = page_of({**measured, "evaluation": {**FACTS, "train_images": 300}}, classes=("cat", "dog"))
    rows = re.findall(r'<th scope="row">([^<]+)</th><td class="n">([^<]+)</td>(?:<td class="n">([^<]+)</td>)?', page)
    assert rows == [
        ("CNN", "62%", ""),
        ("CNN trained on 500 real images of &lt;held&gt; out", "93.4%", ""),
        ("Guessing", "50%", ""),
        ("cat", "10", "90%"),
        ("dog", "10", "70%"),
    ]
    assert "cat (30%)" in page, "what dogs are taken for"


def test_where_classes_are_uneven_the_balanced_accuracy_comes_first():
    measured = {**EVALUATION, "balanced_accuracy": {"classifier": 0.805}}
    for uneven, order in ((False, ["Accuracy", "Balanced accuracy"]), (True, ["Balanced accuracy", "Accuracy"])):
        page = page_of({**measured, "evaluation": {**FACTS, "uneven_classes": uneven}})
        assert re.findall(r">((?:Balanced a|A)ccuracy)</th>", page) == order
        (shown,) = re.findall(r'Classifier</th><td class="n">([^<]+)</td>\s*<td class="n">([^<]+)</td>', page)
        assert shown == (("80.5%", "82.1%") if uneven else ("82.1%", "80.5%"))
        assert ("rare classes count as much" in page) == uneven


def test_what_classifiers_saw_of_larger_images_is_told():
    assert "averaged to" not in page_of(EVALUATION)
    seen = {**EVALUATION, "evaluation": {**FACTS, "train_images": 100, "classifiers_see": [64, 48]}}
    assert "All images were averaged to 64 × 48 pixels" in page_of(seen)


def test_a_distance_is_told_with_its_extractor():
    alike = {"extractor": "<named>", "frechet_distance": 12.3456, "precision": 0.7, "recall": 0.25, "images": 5000}
    page = page_of({**EVALUATION, "similarity": alike})
    assert "<dt>Fréchet distance</dt><dd>12.35</dd>" in page
    assert "<dd>25% of the real images lie near synthetic images</dd>" in page
    assert "<dt>Extractor</dt><dd>&lt;named&gt;</dd>" in page
    assert "not comparable with published FIDs" in page


# --- as other projects read it ---

OF_ACCOUNT = {"dataset": "the dataset's name", "account": "the account's name", "notes": ("a remark on its delta",)}
OF_ACCOUNT |= {"account_epsilon": 7.4321, "account_attacker_certainty_max": 0.98765, "account_nano": 519_777_111}
OF_ACCOUNT |= {"account_spent_nano": 103_888_222}
TOLD = ["the dataset's", "the account's", "a remark", "7.43", "0.98765", "98.7", "98.8", "519777111", "519,777,111"]
TOLD += ["103888222", "103,888,222", "never to be told"]


@pytest.fixture
def published(tmp_path: Path) -> tuple[bytes, dict[str, Any]]:
    page = report(tmp_path, release=replace(RELEASE, **OF_ACCOUNT), technical={"torch": "2.9", "attempts": "3"})
    return page.encode(), json.loads((tmp_path / "report.json").read_text("utf-8"))


def test_the_data_have_the_guarantee_and_what_was_measured_of_synthetic_images_alone(published):
    page, document = published
    for part in document.values():
        part["what a later report may say"] = "never to be told"
    del document["synthetic"]["what a later report may say"]
    shown = shared_part(document)
    assert [word for word in TOLD if word in json.dumps(shown)] == []
    assert shown["synthetic"] == document["synthetic"]
    card = ("epsilon", "delta", "unit", "adjacency", "cost_nano", "capacity_nano", "assumed_public", "not_covered")
    assert {name: shown["guarantee"][name] for name in card} == {name: CARD[name] for name in card}
    assert shown["release"]["stages"] == document["release"]["stages"]
    assert {name for name, value in shown["technical"].items() if value} == {"torch"}
    assert any(word in page.decode() for word in TOLD), "the page of the own project tells it"


@pytest.mark.parametrize("evaluations", [[], [EVALUATION]])
def test_the_page_has_the_same_sections_without_a_word_of_the_account(published, evaluations):
    page, document = published
    shown = shared_page(page, shared_part(document), evaluations, ["a", "b"]).decode()
    assert [word for word in TOLD if word in shown] == []
    order = [shown.index(f'id="{part}"') for part in ("guarantee", "synthetic", "usefulness", "technical")]
    assert order == sorted(order)
    assert shown.count("data:image/png") == page.decode().count("data:image/png") > 0
    figures = re.findall('<span class="figure">[^<]+</span>', page.decode())
    assert re.findall('<span class="figure">[^<]+</span>', shown) == figures != []
    assert "<script" not in shown
    assert ("82.1%" in shown) == bool(evaluations)
