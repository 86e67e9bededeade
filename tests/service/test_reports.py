"""The report as it is served, of a release from before evaluations were jobs of their own."""

import re

from service.reports import _data, _page

OLD = b'<h2>3. How useful it is</h2><p>71.0%</p><section aria-labelledby="technical"><h2>4.</h2></section>'
FACTS = {"dataset": "<held> out", "dataset_id": "ds_x", "train_images": None, "test_images": 1000, "seeds": [0]}
EVALUATION = {
    "id": "evl_x",
    "finished_at": "2030-01-02T03:04:05+00:00",
    "accuracy": {"classifier": 0.8215},
    "accuracy_warm_start_only": None,
    "evaluation": FACTS,
    "confusion": [[9, 1], [3, 7]],
}


def test_without_evaluations_it_is_what_was_published():
    assert _page(OLD, [], ["a", "b"]) == OLD


def test_the_section_stands_before_the_technical_facts_and_names_are_escaped():
    page = _page(OLD, [EVALUATION], ["a", "<b>"]).decode()
    assert page.startswith(OLD.decode()[:50])
    assert page.index("71.0%") < page.index("82.1%") < page.index('aria-labelledby="technical"')
    assert "1,000 images of the public dataset <strong>&lt;held&gt; out" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "70</td>" in page  # of the second class, in percent


def test_the_latest_on_each_dataset_is_shown_whole_and_the_others_are_listed():
    other = {**EVALUATION, "id": "evl_y", "evaluation": {**FACTS, "dataset": "more", "dataset_id": "ds_y"}}
    older = {**EVALUATION, "id": "evl_z", "accuracy": {"classifier": 0.5}}
    page = _page(OLD, [EVALUATION, other, older], ["a", "b"]).decode()
    assert page.count("Share of the images of a true class") == 2
    assert (
        page.index("On &lt;held&gt; out")
        < page.index("On more")
        < page.index("Earlier evaluations")
        < page.rindex("50%")
    )


def test_the_balanced_accuracy_of_earlier_evaluations_is_listed_too():
    older = {**EVALUATION, "id": "evl_z", "accuracy": {"cnn": 0.99}, "balanced_accuracy": {"cnn": 0.505}}
    page = _page(OLD, [EVALUATION, older], ["a", "b"]).decode()
    assert page.index("Earlier evaluations") < page.rindex("50.5%") < page.rindex("99%")


def test_the_data_carry_all_of_them():
    assert b'"evaluations": [' in _data(b'{"usefulness": null}', [EVALUATION], [])


def test_accuracy_stands_beside_guessing_real_images_and_each_class():
    measured = {**EVALUATION, "accuracy": {"cnn": 0.62}, "accuracy_real": 0.934}
    page = _page(OLD, [{**measured, "evaluation": {**FACTS, "train_images": 300}}], ["cat", "dog"]).decode()
    rows = re.findall(r'<th scope="row">([^<]+)</th><td class="n">([^<]+)</td>(?:<td class="n">([^<]+)</td>)?', page)
    assert rows == [
        ("CNN", "62%", ""),
        ("CNN that learned 500 real images of &lt;held&gt; out", "93.4%", ""),
        ("Guessing", "50%", ""),
        ("cat", "10", "90%"),
        ("dog", "10", "70%"),
    ]
    assert "cat (30%)" in page, "what dogs are taken for"


def test_where_classes_are_uneven_the_balanced_accuracy_comes_first():
    measured = {**EVALUATION, "balanced_accuracy": {"classifier": 0.805}}
    for uneven, order in ((False, ["Accuracy", "Balanced accuracy"]), (True, ["Balanced accuracy", "Accuracy"])):
        page = _page(OLD, [{**measured, "evaluation": {**FACTS, "uneven_classes": uneven}}], ["a", "b"]).decode()
        assert re.findall(r">((?:Balanced a|A)ccuracy)</th>", page) == order
        (shown,) = re.findall(r'Classifier</th><td class="n">([^<]+)</td>\s*<td class="n">([^<]+)</td>', page)
        assert shown == (("80.5%", "82.1%") if uneven else ("82.1%", "80.5%"))
        assert ("rare ones count as much" in page) == uneven


def test_what_classifiers_saw_of_larger_images_is_told():
    assert "averaged to" not in _page(OLD, [EVALUATION], ["a", "b"]).decode()
    seen = {**EVALUATION, "evaluation": {**FACTS, "train_images": 100, "classifiers_see": [64, 48]}}
    assert "They saw all images averaged to 64 × 48 pixels" in _page(OLD, [seen], ["a", "b"]).decode()


def test_a_distance_is_told_with_its_extractor():
    alike = {"extractor": "<named>", "frechet_distance": 12.3456, "precision": 0.7, "recall": 0.25, "images": 5000}
    page = _page(OLD, [{**EVALUATION, "likeness": alike}], ["a", "b"]).decode()
    assert "<dt>Fréchet distance</dt><dd>12.35</dd>" in page
    assert "<dd>25% of the real images lie where synthetic ones do</dd>" in page
    assert "<dt>Extractor</dt><dd>&lt;named&gt;</dd>" in page
    assert "not comparable with published FIDs" in page
