"""RGP, Table 3: a transformer that has learned public text learns private sentences.

The paper fine-tunes BERT on four sets of GLUE. Neither can be had as a package, so a small transformer over public word
vectors learns the sign of ratings on public sentences first, and then that of 8,000 private movie reviews. Every method
has the same rates to choose from, tried once on 1,000 of the private sentences that are held out; what is then trained
on all of them is tested once.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.classifier_runs import DELTA
from benchmarks.reproductions.papers.rows import Row, row_of, since, spread
from benchmarks.reproductions.papers.sentences import LENGTH, rated_sentences
from benchmarks.reproductions.papers.transformer import Transformer
from benchmarks.step_runs import Labelled, make_steps, percent_right
from models.portable.layers import initialise
from privacy.plans.private_steps import StepsConfig
from workers.recipes.dp_classifier.loop import losses

_PUBLISHED_EPSILON = 8.0
_WIDE = 1e3  # a clip that touches no gradient
_HELD_OUT, _TUNING_SEED = 1000, 100
_PUBLIC_BATCH, _PUBLIC_RATE = 64, 1e-3
_SIZES: Mapping[str, dict[str, Any]] = {
    "quick": {"epochs": 6.0, "batch": 256, "seeds": (0, 1), "rates": (3e-4, 1e-3, 3e-3), "public": 5, "rank": 2},
    "full": {"epochs": 50.0, "batch": 512, "seeds": (0, 1, 2, 3, 4), "rates": (1e-4, 3e-4, 1e-3, 3e-3)}
    | {"public": 10, "rank": 8},
}


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of the table.

    Attributes:
        estimator: of the private gradient.
        published: accuracy on SST-2 in per cent, at epsilon 8 where there is noise.
        epsilons: 8 as published, and 1; None is without noise, where nothing is clipped either.
        head: whether the last layer alone learns.
    """

    estimator: str
    published: float
    epsilons: tuple[float | None, ...] = (_PUBLISHED_EPSILON, 1.0)
    head: bool = False


METHODS: Mapping[str, Method] = {
    "Full (N.P.)": Method("dpsgd", 93.4, (None,)),
    "Linear (N.P.)": Method("dpsgd", 82.1, (None,), head=True),
    "RGP (N.P.)": Method("rgp", 92.9, (None,)),
    "DP-SGD": Method("dpsgd", 82.3),
    "RGP-random": Method("rgp_random", 87.8),
    "RGP": Method("rgp", 91.5),
}


def sentence_rows(budget: str) -> list[Row]:
    """Return a row of what public sentences teach, and one of each method and epsilon."""
    texts, size, started = rated_sentences(), _SIZES[budget], time.monotonic()
    learning, held_out = texts.private.part(slice(_HELD_OUT, None)), texts.private.part(slice(_HELD_OUT))
    starts = [pretrained(texts.public, texts.vectors, seed, size["public"]) for seed in size["seeds"]]
    found = [percent_right(start, texts.test) for start in starts]
    setting = f"{size['public']} epochs of {len(texts.public.labels):,} public sentences"
    rows = [_row("Public sentences alone", None, setting, found, started)]
    for name, method in METHODS.items():
        for epsilon in method.epsilons:
            started, tries = time.monotonic(), dict[float, float]()
            for rate in size["rates"]:
                config = _config(method, epsilon, rate, size, _TUNING_SEED)
                tries[rate] = percent_right(tuned(starts[0], method, learning, config, epsilon), held_out)
            best, found = max(tries, key=lambda rate: tries[rate]), []
            for start, seed in zip(starts, size["seeds"], strict=True):
                config = _config(method, epsilon, best, size, seed)
                found.append(percent_right(tuned(start, method, texts.private, config, epsilon), texts.test))
            told = ", ".join(f"rate {of:g}: {value:.1f} held out" for of, value in tries.items())
            setting = f"{size['epochs']:g} epochs of {size['batch']}, rank {size['rank']}, delta {DELTA:g}; {told}"
            row = _row(name, epsilon, setting, found, started)
            row["published"] = method.published if epsilon in (None, _PUBLISHED_EPSILON) else None
            rows.append(row)
            print(f"  {name} at {epsilon}: {row['ours']:.1f}, {row['seconds']:.0f} s", flush=True)
    return rows


def _config(method: Method, epsilon: float | None, rate: float, size: Mapping[str, Any], seed: int) -> StepsConfig:
    return StepsConfig(
        estimator=method.estimator,
        epochs=size["epochs"],
        expected_batch=size["batch"],
        clip=_WIDE if epsilon is None else 1.0,
        rank=size["rank"],
        learning_rate=rate,
        optimiser="adam",
        initial_seed=seed,
    )


def pretrained(public: Labelled, vectors: Tensor, seed: int, epochs: int) -> Transformer:
    """Train a transformer on public sentences, as usual."""
    model = Transformer(vectors, LENGTH)
    initialise(model, seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=_PUBLIC_RATE)
    stream = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(public.labels), generator=stream), _PUBLIC_BATCH):
            optimiser.zero_grad()
            losses(model(public.inputs[rows]), public.labels[rows]).mean().backward()
            optimiser.step()
    return model


def tuned(
    start: Transformer, method: Method, private: Labelled, config: StepsConfig, epsilon: float | None
) -> Transformer:
    """Train a copy of a network on private sentences."""
    model = copy.deepcopy(start)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not method.head or name.startswith("head.")
    stream = torch.Generator().manual_seed(0)
    words = torch.randint(len(model.vectors), (config.anchors, LENGTH), generator=stream)  # sentences of chance
    make_steps(model, private, words, config, epsilon)
    return model


def _row(name: str, epsilon: float | None, setting: str, found: Sequence[float], started: float) -> Row:
    more = {**spread(found), "seconds": since(started)}
    return row_of("rgp", "3", name, "movie reviews", epsilon, setting, **more)
