"""The report on a release: order, honesty, self-containment, print; the panels; the contact sheet."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from obscura.wire.provenance import SOURCE_TYPE
from privacy.accounting.filter import attacker_certainty_max, open_filter
from service.reports import guarantee_of, render_page
from workers.evaluation.report import draw_grid, measure, write_report

CLASSES = ("Shirt", "Bag", "Boot & <shoe>")
CARD = {"epsilon": 0.99991, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}
ACCOUNTING = {"method": "approximate_gdp", "rate": open_filter(3.0, 1e-5).rate, "base": 0.0}
ACCOUNTING |= {"capacity_nano": 519_000_000, "cost_nano": 71_800_000, "accountant": "dp-accounting 0.6.0"}
CARD |= {"accounting": ACCOUNTING}
CARD |= {"assumed_public": ["number of records"], "not_covered": ["what is true of the population"]}
RELEASE: dict[str, Any] = {
    **{"name": "rel_trial", "dataset": "clothes", "account": "demo", "recipe": "datalens", "classes": CLASSES},
    "created_at": "2026-01-02T05:04:59+02:00",
    "stages": [{"name": "gradient_votes", "releases": 2245, "noise_multiplier": 176.8, "cost_nano": 71_800_000}],
    "facts": {"teachers": 4000, "warm_start": True, "noise_stddev": {"class_means": 18008.4, "votes": 2584.68}},
    **{"notes": [], "incomplete": None, "account_nano": 519_000_000, "account_spent_nano": 103_800_000},
    "account_epsilon": 3.0,
    "account_attacker_certainty_max": attacker_certainty_max(open_filter(3.0, 1e-5)),
}


def samples(seed: int = 0, count: int = 90) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int64) % 3
    centres = np.zeros((3, 12, 12))
    for index in range(3):
        centres[index, 4 * index : 4 * index + 4] = 200
    return np.clip(centres[labels] + rng.normal(0, 60, (count, 12, 12)), 0, 255).astype(np.uint8), labels


def report(folder: Path, **changes: Any) -> str:
    images, labels = samples()
    facts = {"card": CARD, "release": RELEASE, "images": images, "labels": labels} | changes
    guarantee = guarantee_of(facts.pop("card"))
    folder.mkdir(exist_ok=True)
    write_report(folder, **facts)
    document = json.loads((folder / "report.json").read_text(encoding="utf-8")) | {"guarantee": guarantee}
    return render_page(document, document.pop("pictures"), [], CLASSES, "http://here").decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return report(folder, technical={"config_digest": "ab12"})


def test_report_is_one_file_that_loads_and_runs_nothing(page):
    assert not re.search(r"<\s*(script|link)\b", page, flags=re.IGNORECASE)
    addresses = re.findall(r"""\s(?:src|href|data|action)\s*=\s*["']?([^"'\s>]*)""", page, flags=re.IGNORECASE)
    assert addresses
    links = {address for address in addresses if not address.startswith("data:image/png;base64,")}
    assert links == {f"http://here/docs/{where}/" for where in DOCUMENTED}
    assert "url(" not in page
    assert len(re.findall("http", re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", page))) == len(links)


DOCUMENTED = ("how-to/use-synthetic-images", "explanation/privacy-guarantee")


@pytest.mark.parametrize("where", DOCUMENTED)
def test_the_documentation_has_the_linked_pages(where):
    assert (Path(__file__).parents[3] / "docs" / f"{where}.md").is_file()


def test_the_verdict_comes_first_then_guarantee_images_and_usefulness(page):
    order = [page.index(f'id="{part}"') for part in ("verdict", "guarantee", "synthetic", "usefulness", "technical")]
    assert order == sorted(order)
    first = page[: page.index('id="guarantee"')]
    assert re.findall(r'alt="Synthetic image of the class (\w+)', first) == ["Shirt", "Bag", "Boot"] * 3
    assert [name for name in ("ε = 1.0<", "δ = 10⁻⁵<", "One record", "Not measured") if name not in first] == []


def test_a_report_shows_neither_nano_units_nor_internal_names_nor_the_hour(page):
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert re.findall(r"nano|\w+_\w+|UTC|\d:\d\d|serif", re.sub("config_digest|rel_trial", "", text)) == []


def test_a_printed_report_is_light_and_begins_with_the_verdict_alone(page):
    printed = page[page.index("@media print") : page.index("</style>")]
    assert "--paper: #fff" in printed
    assert ".verdict { break-after: page; }" in printed


SAID = {
    "odds": "can raise that to at most <strong>97.3%</strong>",
    "what the odds are of": "everything that this account may ever publish can raise",
    "the meaning of delta": "It holds except with a probability of at most δ",
    "delta": "10⁻⁵",
    "an epsilon of 0.99991 never smaller than it is": "ε = 1.0<",
    "the accountant with its version": "dp-accounting 0.6.0",
    "when": "Published 2 Jan 2026. ",
    "stages in words": '<th scope="row">Gradient votes</th><td class="n">2,245</td><td class="n">176.8</td>',
    "what to do": "<li>Evaluate the release on public images before you rely on it.",
    "what not to do": "<li>Assume that a person with several images has this protection: it covers one record.</li>",
    "names escaped": "Boot &amp; &lt;shoe&gt;",
}


@pytest.mark.parametrize("words", SAID.values(), ids=SAID)
def test_the_report_says(page, words):
    assert words in page


def test_the_odds_are_those_of_the_limit_and_rounded_up(page):
    assert re.findall(r"at most <strong>([\d.]+%)", page) == ["97.3%"]  # none is told of this release, or of the spend
    assert "20% of this budget" in page


def test_report_never_promises_anonymity_and_lets_no_name_through_as_it_is(page):
    assert not re.search(r"anonym|100% private|completely private|<shoe>", page, flags=re.IGNORECASE)


def test_json_carries_the_same_facts(page, folder):
    document = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert document["synthetic"]["images"] == 90
    assert document["release"]["stages"][0]["releases"] == 2245


def test_report_is_the_same_bytes_twice(tmp_path):
    first = report(tmp_path / "a")
    assert first == report(tmp_path / "b")
    assert (tmp_path / "a" / "report.json").read_bytes() == (tmp_path / "b" / "report.json").read_bytes()
    assert "was not measured on a public dataset" in first


def test_an_incomplete_release_says_how_much_was_made_and_why(tmp_path, page):
    facts = RELEASE | {"incomplete": {"reason": "time_limit", "fraction": 0.421, "made": 421, "planned": 1000}}
    shown = report(tmp_path / "b", release=facts)
    assert "Incomplete: 42.1% of the planned noisy releases were made." in shown
    assert "because it reached the time limit" in shown
    assert shown.index("Incomplete") < shown.index('id="guarantee"')
    assert "Incomplete" not in page


def test_report_takes_colour_images_and_a_class_without_samples(tmp_path):
    images, labels = samples()
    colour = np.repeat(images[labels < 2][..., None], 3, axis=-1)
    assert "no sample in this report" in report(tmp_path, images=colour, labels=labels[labels < 2])


def test_subject_level_release_speaks_of_persons(tmp_path):
    page = report(tmp_path, card=CARD | {"unit": "subject"}, release=RELEASE | {"stages": []})
    assert "a person's images were" in page.replace("&#39;", "'")


def test_report_refuses_a_card_without_its_guarantee(tmp_path):
    with pytest.raises(KeyError, match="delta"):
        report(tmp_path, card={key: value for key, value in CARD.items() if key != "delta"})


def test_varied_classes_are_not_flagged():
    panels = measure(*samples(), CLASSES)
    assert panels.collapsed == ()
    assert panels.exact_duplicates == 0


def test_a_class_that_repeats_one_image_is_flagged(tmp_path):
    images, labels = samples()
    images[labels == 1] = images[1]
    panels = measure(images, labels, CLASSES)
    assert panels.collapsed == ("Bag",)
    assert panels.exact_duplicates == 29
    assert panels.classes[1].twin_share == 1.0
    assert "Mode collapse suspected</strong> in Bag" in report(tmp_path, images=images, labels=labels)


def test_diversity_is_the_mean_pairwise_distance():
    images, labels = samples(count=30)
    group = images[labels == 0].reshape(10, -1) / 255.0
    slow = [np.sqrt(np.mean((a - b) ** 2)) for i, a in enumerate(group) for j, b in enumerate(group) if i != j]
    assert measure(images, labels, CLASSES).classes[0].diversity == pytest.approx(np.mean(slow))


def test_grid_has_one_row_a_class():
    images = np.zeros((6, 28, 28, 1), dtype=np.uint8)
    images[2:4] = 255
    picture = Image.open(io.BytesIO(draw_grid(images, ("a", "b", "c"))))
    assert SOURCE_TYPE.encode() in picture.info["xmp"]
    sheet = np.asarray(picture.convert("L"))
    column = sheet[:, -30]  # through the last image of each row
    assert [int(column[16 + 28 + 59 * row]) for row in range(3)] == [0, 255, 0]
    assert sheet.shape[0] == 2 * 16 + 3 * 56 + 2 * 3


@pytest.mark.parametrize(("share", "noisy"), [(0.2, True), (0.7, False)])
def test_noise_is_called_noise_and_not_free_of_mode_collapse(tmp_path, share, noisy):
    shown = report(tmp_path, release=RELEASE | {"facts": {"fraction_above_noise": share}})
    assert ("Mostly noise." in shown) == noisy
    assert ("<td>no sign</td>" in shown) != noisy
    assert f"{share:.0%} of what distinguishes the classes" in shown
