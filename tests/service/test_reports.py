"""The published report, joined with evaluations, and the part of it that other projects read."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.reports import guarantee_of, reference_of, render_page, shared_part
from tests.workers.evaluation.test_report import CARD, report
from tests.workers.evaluation.test_report import RELEASE as PUBLISHED
from workers.evaluation.report import measure

FACTS = {"dataset": "<held> out", "dataset_id": "ds_x", "train_images": None, "test_images": 1000, "seeds": [0]}
EVALUATION = {
    "id": "evl_x",
    "finished_at": "2030-01-02T03:04:05+00:00",
    "accuracy": {"classifier": 0.8215},
    "accuracy_warm_start_only": None,
    "evaluation": FACTS,
    "confusion": [[9, 1], [3, 7]],
}


RELEASE = {"name": "r", "recipe": "moments", "classes": [], "created_at": None, "stages": [], "facts": {}}
DOCUMENT = {
    "release": RELEASE | {"incomplete": None},
    "guarantee": {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "adjacency": "add_remove", "accountant": None}
    | {"pld_epsilon": None, "assumed_public": [], "not_covered": [], "cost_nano": 1},
    "synthetic": asdict(measure(np.zeros((2, 3, 3), np.uint8), np.arange(2), ("a", "b"))) | {"mode_collapse_rule": ""},
    "technical": {},
}


def page_of(*evaluations: dict[str, Any], classes: Sequence[str] = ("a", "b"), document: Any = DOCUMENT) -> str:
    return render_page(document, {}, list(evaluations), classes).decode()


def lists_of(page: str) -> tuple[list[str], list[str]]:
    """What to do and what not to do."""
    do, dont = re.findall(r"<h2>Do(?: not)?</h2><ul>(.*?)</ul>", page)
    return re.findall("<li>(.*?)</li>", do), re.findall("<li>(.*?)</li>", dont)


def test_the_first_page_has_the_accuracy_beside_that_of_real_images_and_the_weakest_class():
    shares: dict[str, Any] = {"accuracy_by_class": {"cat": 0.8, "dog": 0.49}, "accuracy_real": 0.877}
    shares["evaluation"] = FACTS | {"test_images": 10_000}
    page = page_of({**EVALUATION, "accuracy": {"mlp": 0.7, "cnn": 0.836}, **shares})
    first = page[: page.index('id="guarantee"')]
    assert '<span class="figure">83.6%</span>' in first
    assert "After training on 5,000 real images: 87.7%" in first
    assert '<span class="figure">dog: 49%</span>' in first
    do, dont = lists_of(page)
    assert "Rely on the class dog: only 49% of its real images are recognised." in dont
    assert any("confirm results on real images" in item for item in do)
    assert not any("Evaluate the release" in item for item in do)
    do, _ = lists_of(page_of({**EVALUATION, "accuracy": {"cnn": 0.5}, **shares}))
    assert any("Train final classifiers on real images" in item for item in do)


def test_a_classifier_of_few_real_images_is_no_standard():
    measured = {**EVALUATION, "accuracy_real": 0.46, "evaluation": FACTS | {"test_images": 49}}
    page = page_of(measured)
    assert "real images:" not in page[: page.index('id="guarantee"')]
    assert "CNN trained on 25 real images" in page
    assert "tested on 24 others; 95% interval 28% to 65.1%. With fewer than 1,000 training images, this is" in page
    enough = reference_of(measured | {"evaluation": {"test_images": 2000}})
    assert enough is not None
    assert (enough["few"], enough["note"]) == (False, "tested on 1,000 others; 95% interval 42.9% to 49.1%")
    assert reference_of({"evaluation": {"test_images": 49}}) is reference_of({"accuracy_real": 0.5}) is None


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("release", {"facts": {"fraction_above_noise": 0.1}}, "Expect recognisable images"),
        ("release", {"incomplete": {"fraction": 0.42, "reason": "cancelled"}}, "it contains 42% of the planned"),
        ("synthetic", {"collapsed": ["dog"]}, "Train on dog alone"),
        ("guarantee", {"unit": "record"}, "it covers one record"),
    ],
)
def test_what_not_to_do_follows_from_the_figures(part, changes, words):
    changed = DOCUMENT | {"guarantee": DOCUMENT["guarantee"] | {"unit": "subject"}}
    assert words not in " ".join(lists_of(page_of(document=changed))[1])
    changed = changed | {part: changed[part] | changes}
    assert words in " ".join(lists_of(page_of(document=changed))[1])


def test_a_weak_guarantee_is_called_weak():
    weak = DOCUMENT | {"guarantee": DOCUMENT["guarantee"] | {"epsilon": 10.5}}
    assert "only with people you trust" in lists_of(page_of(document=weak))[0][0]
    assert "only with people you trust" not in page_of()


def test_evaluations_fill_one_section_and_names_are_escaped():
    page = page_of(EVALUATION, classes=("a", "<b>"))
    assert "82.1%" in page
    assert "2 Jan 2030" in page
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
    page = page[page.index('id="usefulness"') :]
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
        assert f'<span class="key">{order[0]} on' in page
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
def published(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    page = report(tmp_path, release=PUBLISHED | OF_ACCOUNT, technical={"torch": "2.9", "attempts": "3"})
    return page, json.loads((tmp_path / "report.json").read_text("utf-8"))


def shown_to_others(document: dict[str, Any]) -> dict[str, Any]:
    return shared_part(document) | {"guarantee": guarantee_of(CARD)}


def test_the_data_have_the_guarantee_and_what_was_measured_of_synthetic_images_alone(published):
    page, document = published
    del document["pictures"]
    for part in document.values():
        part["what a later report may say"] = "never to be told"
    del document["synthetic"]["what a later report may say"]
    shown = shown_to_others(document)
    assert [word for word in TOLD if word in json.dumps(shown)] == []
    assert shown["synthetic"] == document["synthetic"]
    card = ("epsilon", "delta", "unit", "adjacency", "assumed_public", "not_covered")
    assert {name: shown["guarantee"][name] for name in card} == {name: CARD[name] for name in card}
    costs = ("cost_nano", "capacity_nano", "rate", "base", "accountant")
    assert {name: shown["guarantee"][name] for name in costs} == {name: CARD["accounting"][name] for name in costs}
    assert shown["release"]["stages"] == document["release"]["stages"]
    assert {name for name, value in shown["technical"].items() if value} == {"torch"}
    assert any(word in page for word in TOLD), "the page of the own project tells it"


@pytest.mark.parametrize("evaluations", [[], [EVALUATION]])
def test_the_page_has_the_same_sections_without_a_word_of_the_account(published, evaluations):
    page, document = published
    pictures = document.pop("pictures")
    shown = render_page(shown_to_others(document), pictures, evaluations, ["a", "b"]).decode()
    assert [word for word in TOLD if word in shown] == []
    order = [shown.index(f'id="{part}"') for part in ("verdict", "guarantee", "synthetic", "usefulness", "technical")]
    assert order == sorted(order)
    assert shown.count("data:image/png") == page.count("data:image/png") > 0
    figures = re.findall('<span class="figure">[^<]+</span>', page)[:3]
    assert re.findall('<span class="figure">[^<]+</span>', shown)[:3] == figures != []
    assert "<script" not in shown
    assert ("82.1%" in shown) == bool(evaluations)
