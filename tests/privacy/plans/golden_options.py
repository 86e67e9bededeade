"""What plans and refusals were before options became pydantic models: asked again here, and compared by a test.

`python -m tests.privacy.plans.golden_options` writes the file anew. Whoever does that says why in the commit.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from privacy.accounting.filter import open_filter
from privacy.errors import InvalidParameter
from privacy.plans.plan import Plan, PublicFacts
from privacy.plans.registry import RECIPES, build_plan

FILE = Path(__file__).with_name("golden_options.json")
ACCOUNT = open_filter(10.0, 1e-6)
SAMPLED = "poisson_gaussian"
FACTS = {
    "grey": PublicFacts(tuple("0123456789"), 28, 28, 1, 60_000, "record"),
    "few in colour": PublicFacts(("cat", "dog"), 30, 32, 3, 1_500, "record"),
    "subjects": PublicFacts(("no", "yes"), 32, 32, 3, 9_000, "subject", 3_000),
}
PLACES = (("grey", 1.0), ("grey", 0.3), ("grey", 8.0), ("few in colour", 1.0), ("subjects", 8.0))
ASKED: Mapping[str, tuple[dict[str, Any], ...]] = {
    "class_histogram": ({},),
    "datalens": (
        {"teachers": 200, "top_k": 5, "images": 40, "step": 1},
        {"stddev": 900, "teachers": 300},
        {
            "teacher_network": "convolutional",
            "evaluation_seed": 3,
            "use_top_k": False,
            "use_threshold": True,
            "teachers": 300,
        },
        {"preset": "published", "images": 77},
    ),
    "dp_classifier": (
        {"preset": "cnn", "epochs": 3, "momentum": 0, "optimiser": "adam"},
        {"estimator": "gep", "anchors_dataset_id": "ds_public", "anchors": 99, "clip_residual": 0.1},
        {"estimator": "bgep", "freeze": "ranked", "freeze_every": "step", "basis_groups": "widths"},
        {"architecture": "pretrained_linear", "extractor": "resnet_18", "expected_batch": 64},
        {"estimator": "topagg", "keep": 0.5, "rate_drops": 2, "rate_decay": 0.5, "weight_decay": 1},
        {"estimator": "rgp_random", "rank": 3, "rank_share": 0.5, "warm_up_share": 0},
    ),
    "dp_diffusion": (
        {"patch": 2, "multiplicity": 2, "guidance": 1, "sampling_steps": 9, "churn": 0},
        {"central_images": 3, "central_share": 0.2, "central_batch": 300, "central_clip": 0.5},
        {"moments_share": 0.3, "moments_steps": 10, "start_sigma": 2, "ema": 0},
    ),
    "moments": (
        {"mean_share": 0.4, "pooled_share": 0.3, "class_share": 0.3, "colour": "luma_chroma", "texture": False},
        {
            "texture": True,
            "clusters": 3,
            "cluster_share": 0.1,
            "mean_share": 0.2,
            "pooled_share": 0.3,
            "class_share": 0.4,
        },
        {"guide_share": 0.2, "guide_steps": 3, "guide_logit": 9, "guide": True},
        {"guide_share": 0.9, "guide": True},
        {"shrink": True, "evaluation_seed": 3},
    ),
    "dpgan": (
        {"discriminator_steps": 4, "accuracy_floor": 0, "records_per_subject": 9},
        {"estimator": "dpsgd", "freeze": "posterior", "latent": 5, "generator_batch": 7, "initial_seed": 12},
    ),
    "select_public": (
        {"public_dataset_id": "ds_public", "public_labels": True, "extractor": "resnet_18", "iterations": 1},
        {"public_dataset_id": "ds_public", "choices": 7, "threshold": 0, "mirror": True, "shift": 0, "colour": 1},
    ),
}
TOGETHER: Mapping[str, tuple[dict[str, Any], ...]] = {  # each value is right, and not beside the others
    "class_histogram": ({"preset": "default"}, {"stddev": 3}),
    "datalens": (
        {"preset": "best"},
        {"preset": 3},
        {"warm_star": False},
        {"images": 10, "stddev": 9.0},
        {"images": None},
        {"top_k": 900},
        {"teachers": 50_000},
        {"teachers": 12_000, "teacher_network": "convolutional"},
        {"stddev": 1, "teachers": 10},
    ),
    "dp_classifier": (
        {"preset": "fashion"},
        {"clips": 1.0},
        {"multiplicity": 2},
        {"extractor": "imagenet"},
        {"architecture": "pretrained_linear"},
        {"architecture": "pretrained_linear", "extractor": "../a"},
        {"architecture": "pretrained_linear", "extractor": "a" * 65},
        {"estimator": "dpsgd", "anchors_dataset_id": "ds_public"},
        {"estimator": "gep", "anchors_dataset_id": "d" * 65},
        {"estimator": "rgp", "freeze": "random"},
        {"estimator": "gep", "freeze": "posterior"},
        {"estimator": "gep", "architecture": "wrn28_4", "basis_size": 3},
        {"epochs": 10_000, "expected_batch": 1},
    ),
    "dp_diffusion": (
        {"guidance": 1, "label_drop": 0},
        {"central_images": 1, "central_share": 0},
        {"central_images": 1, "moments_share": 0.1},
        {"start_sigma": 1},
    ),
    "moments": (
        {"preset": "warm_start_only"},
        {"vote_share": 0.1},
        {"teachers": 9},
        {"clusters": 3},
        {"mean_share": 0.5},
        {"guide_share": 0, "guide": True},
        {"guide_steps": 11, "guide": True},
        {"clusters": 3, "guide": True},
    ),
    "dpgan": ({"multiplicity": 2}, {"discriminator_steps": 5, "discriminator_steps_max": 4}),
    "select_public": ({}, {"public_dataset_id": "ds_public", "extractor": "../a"}),
}
VALUES: tuple[Any, ...] = (
    *(True, False, None, "", "x", "1", [], {}, [1], math.nan, math.inf, -math.inf, 10**400),
    *(-(10**9), -1, -1e-9, 0, 0.0, 1e-31, 1e-30, 9.99e-9, 1e-8, 1e-7, 1e-6, 9e-4, 1e-3, 0.3, 0.5, 0.6, 0.9, 0.91),
    *(0.99, 0.991, 0.999, 0.9991, 0.99999, 0.999991, 1, 1.0, 1.01, 2, 3, 4, 7, 8, 9, 10, 10.5, 20, 21, 64, 65, 80, 81),
    *(99, 100, 101, 256, 257, 512, 513, 1000, 1001, 1024, 1025, 4096, 4097, 10_000, 10_001, 20_000, 20_001, 65_536),
    *(65_537, 100_000, 100_001, 200_000, 200_001, 1_000_000, 1_000_001, 10**9, 10**9 + 1, 2**31 - 1, 2**31),
)


def planned() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The options, facts and epsilon of each valid case, with the document of its plan or its refusal."""
    for recipe, known in RECIPES.items():
        for options in [{}, *({"preset": preset} for preset in known.presets), *ASKED[recipe]]:
            # To find the noise of the others takes a second.
            quick = recipe in ("class_histogram", "datalens", "moments", "select_public")
            for facts_name, epsilon in PLACES if quick else PLACES[:1]:
                asked = f"{recipe} {json.dumps(options)}"
                yield asked, f"{facts_name} {epsilon}", _planned(recipe, options, epsilon, FACTS[facts_name])


def _planned(recipe: str, options: Mapping[str, Any], epsilon: float, facts: PublicFacts) -> dict[str, Any]:
    try:
        return build_plan(recipe, options, ACCOUNT, ACCOUNT.nano_of(epsilon), facts).to_json()
    except InvalidParameter as error:
        return {"refused": refusal(error)}


def summary(document: Mapping[str, Any]) -> str:
    """A plan in a line: price, releases of its stages, noise of the sampled ones, and a digest of the rest of its JSON.

    Digits beyond the twelfth may follow from the machine's mathematical library; names, order and types may not. The
    noise of sampled stages is searched for, and where the search ends depends on the machine: such a price and such
    a noise have `~` before them, and are compared by `alike`.
    """
    if "refused" in document:
        return str(document["refused"])
    sampled = [stage["event"] for stage in document["stages"] if stage["event"]["type"] == SAMPLED]
    digest = hashlib.sha256(json.dumps(_rounded(document)).encode()).hexdigest()[:16]
    stages = " ".join(f"{stage['name']}:{stage['event']['count']}" for stage in document["stages"])
    noises = "".join(f"~{event['noise_multiplier']:.12g} " for event in sampled)
    return f"{'~' if sampled else ''}{document['price_nano']} {stages} {noises}{digest}"


def alike(found: str, before: str) -> bool:
    """Whether two summaries are equal but for what a search found, which may differ by four parts in 10,000."""
    pairs = list(zip(found.split(" "), before.split(" "), strict=False))
    return found.count(" ") == before.count(" ") and all(
        math.isclose(float(one[1:]), float(other[1:]), rel_tol=4e-4) if one[:1] == other[:1] == "~" else one == other
        for one, other in pairs
    )


def _rounded(part: Any) -> Any:
    """The part with twelve digits of each float, and without what follows from the search for noise."""
    if isinstance(part, float):
        return float(f"{part:.12g}")
    if isinstance(part, Mapping):
        searched = part.get("event", {}).get("type") == SAMPLED or any(
            stage["event"]["type"] == SAMPLED for stage in part.get("stages", ())
        )
        left_out = {"noise_multiplier", "price_nano"} if searched else {"noise_multiplier"}
        return {name: None if name in left_out else _rounded(value) for name, value in part.items()}
    return [_rounded(value) for value in part] if isinstance(part, list | tuple) else part


def refusal(error: InvalidParameter) -> str:
    """What a refusal names: the field and the numbers of its reason."""
    return " ".join([error.name, *(f"{float(number):g}" for number in _numbers(error.why))])


def _numbers(words: str) -> list[str]:
    found = re.findall(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])", words)
    return [number.replace(",", "") for number in found]


def refused_together() -> dict[str, str]:
    """Each case of `TOGETHER` with its refusal."""
    asked = [(recipe, options) for recipe, cases in TOGETHER.items() for options in cases]
    return {f"{recipe} {json.dumps(options)}": verdict(partial(_plan, recipe), options) for recipe, options in asked}


def _plan(recipe: str, **options: Any) -> Plan:
    return build_plan(recipe, options, ACCOUNT, ACCOUNT.nano_of(1.0), FACTS["grey"])


def verdict(make: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """`.` where it can be made, else the refusal, in which the value that was given is found."""
    try:
        make(**options)
    except InvalidParameter as error:
        given = options.get(error.name, error.value) if len(options) == 1 else error.value
        found = repr(error.value) in str(error) and (error.value is given or error.value == given)
        return refusal(error) if found else f"{error} does not name {given!r}"
    return "."


def verdicts(recipe: str, name: str) -> dict[str, str]:
    """Each verdict on an option, with the values that it was given for, by their positions in `VALUES`."""
    groups: dict[str, list[int]] = {}
    for index, value in enumerate(VALUES):
        groups.setdefault(verdict(RECIPES[recipe].config, {name: value}), []).append(index)
    return {answer: _ranges(indices) for answer, indices in groups.items()}


def _ranges(indices: list[int]) -> str:
    """`0-3 7` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def whole() -> dict[str, Any]:
    """Everything that the file holds."""
    plans: dict[str, dict[str, str]] = {}
    documents = json.loads(FILE.read_text("utf-8"))["documents"]  # one for each recipe
    names: dict[str, list[str]] = {}
    for asked, of, document in planned():
        plans.setdefault(asked, {})[of] = summary(document)
        recipe, _, options = asked.partition(" ")
        if of == "grey 1.0" and options == json.dumps(ASKED[recipe][-1]):
            documents += [document] if recipe not in names and document not in documents else []
            names[recipe] = list(document["config"])
    values = {recipe: {name: verdicts(recipe, name) for name in fields} for recipe, fields in names.items()}
    return {"plans": plans, "documents": documents, "together": refused_together(), "values": values}


if __name__ == "__main__":
    FILE.write_text(json.dumps(whole(), indent=0) + "\n")
