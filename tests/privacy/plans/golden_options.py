"""What plans and refusals were before options became pydantic models: asked again here, and compared by a test.

The file lists the cases: options by recipe, and facts with an epsilon. To add one, add its key with an empty text, then
write the file anew by `python -m tests.privacy.plans.golden_options`, and say why in the commit.
"""

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
from privacy.plans.registry import build_plan

FILE = Path(__file__).with_name("golden_options.json")
GOLDEN: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
ACCOUNT = open_filter(10.0, 1e-6)
SAMPLED = "poisson_gaussian"
FACTS = {
    "grey": PublicFacts(tuple("0123456789"), 28, 28, 1, 60_000, "record"),
    "few in colour": PublicFacts(("cat", "dog"), 30, 32, 3, 1_500, "record"),
    "subjects": PublicFacts(("no", "yes"), 32, 32, 3, 9_000, "subject", 3_000),
}


def planned() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The options, and facts with epsilon, of each case in the file, with the document of its plan or its refusal."""
    for asked, places in GOLDEN["plans"].items():
        recipe, _, options = asked.partition(" ")
        for place in places:
            facts, _, epsilon = place.rpartition(" ")
            try:
                budget_nano = ACCOUNT.nano_of(float(epsilon))
                document = build_plan(recipe, json.loads(options), ACCOUNT, budget_nano, FACTS[facts]).to_json()
            except InvalidParameter as error:
                document = {"refused": refusal(error)}
            yield asked, place, document


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
    return f"{'~' if sampled else ''}{document['cost_nano']} {stages} {noises}{digest}"


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
        left_out = {"noise_multiplier", "cost_nano"} if searched else {"noise_multiplier"}
        return {name: None if name in left_out else _rounded(value) for name, value in part.items()}
    return [_rounded(value) for value in part] if isinstance(part, list | tuple) else part


def refusal(error: InvalidParameter) -> str:
    numbers = re.findall(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])", error.why)
    return " ".join([error.name, *(f"{float(number.replace(',', '')):g}" for number in numbers)])


def refused_together() -> dict[str, str]:
    cases = [case.partition(" ") for case in GOLDEN["together"]]
    return {f"{recipe} {options}": verdict(partial(_plan, recipe), json.loads(options)) for recipe, _, options in cases}


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


def whole() -> dict[str, Any]:
    """Everything that the file holds: its cases, asked again, and the plans that were stored."""
    plans: dict[str, dict[str, str]] = {}
    for asked, place, document in planned():
        plans.setdefault(asked, {})[place] = summary(document)
    return {"plans": plans, "documents": GOLDEN["documents"], "together": refused_together()}


if __name__ == "__main__":
    FILE.write_text(json.dumps(whole(), indent=0) + "\n")
