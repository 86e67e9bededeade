"""What a plan says of classes that have unlike numbers of records: from a balance that the owner states, and the noise.

The stated balance is public and is never read off private records. It changes no noise and no price: it tells which
classes the noise drowns, and the public images on which a plan is tried are drawn in it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from pydantic import Field

from obscura.wire.class_shares import TEXT_MAX, read_class_shares
from privacy.errors import InvalidParameter
from privacy.plans.options import RecipeConfig
from privacy.plans.plan import Plan, PublicFacts

NAMED_MAX = 6  # classes that a note names
STATE_IT = "State it with --class-shares (the option class_shares), and the plan says which classes that drowns."
TRY_IT = "How few records of a class are enough is not known of this recipe: try it first, with --class-shares."


class SharesConfig(RecipeConfig):
    """What every recipe that trains on classes may be told of them."""

    class_shares: str = Field(
        "",
        max_length=TEXT_MAX,
        description="How many records each class is likely to have, as its owner states without looking: "
        "`normal=2000,sick=20`, or numbers in the order of the labels. Only ratios count. Plans warn of classes that "
        "noise drowns, and the public images on which a plan is tried are drawn so. Empty: even classes are assumed.",
    )

    def stated_shares(self, classes: Sequence[str]) -> dict[str, float] | None:
        """Return the stated share of each class in label order, adding up to 1; None where nothing is stated.

        Raises:
            InvalidParameter: it is not a number above 0 for each of these classes.
        """
        if not self.class_shares:
            return None
        try:
            numbers = read_class_shares(self.class_shares, classes)
        except ValueError as error:
            raise InvalidParameter("class_shares", self.class_shares, str(error)) from None
        whole = math.fsum(numbers.values())
        return {name: number / whole for name, number in numbers.items()}


def stated_shares(plan: Plan, classes: Sequence[str]) -> dict[str, float] | None:
    """Return the balance that a plan was told, as `SharesConfig.stated_shares` does."""
    return plan.config.stated_shares(classes) if isinstance(plan.config, SharesConfig) else None


def with_class_balance(
    plan: Plan, facts: PublicFacts, smallest_class: Callable[[Plan, PublicFacts], int | None]
) -> Plan:
    """Say which classes the noise drowns by the stated balance, or that even classes are assumed.

    Args:
        plan: of any recipe; one that trains on no classes is left as it is.
        smallest_class: how many units a class must have for the recipe to show it; None where that is not known, or no
            number suffices.

    Raises:
        InvalidParameter: the stated balance does not fit the classes.
    """
    shares = stated_shares(plan, facts.classes)
    if not isinstance(plan.config, SharesConfig) or len(facts.classes) < 2:
        return plan
    limit, units = smallest_class(plan, facts), f"{facts.unit}s"
    known = {} if limit is None else {"class_shown_from": limit}
    if shares is None:
        even = facts.units_declared / len(facts.classes)
        note = f"Even classes are assumed, about {even:,.0f} {units} each"
        note += f"; noise drowns one of fewer than about {limit:,}. {STATE_IT}" if known else f". {TRY_IT}"
        return dataclasses.replace(plan, notes=(*plan.notes, note), facts=plan.facts | known)
    if limit is None:
        return dataclasses.replace(plan, notes=(*plan.notes, f"A balance of the classes is stated. {TRY_IT}"))
    expected = {name: share * facts.units_declared for name, share in shares.items()}
    drowned = sorted((name for name, count in expected.items() if count < limit), key=lambda name: expected[name])
    said = plan.facts | known | {"drowned_classes": drowned}
    if drowned:
        return dataclasses.replace(plan, notes=(_warning(drowned, expected, limit, units), *plan.notes), facts=said)
    note = f"By the stated balance every class has the {limit:,} {units} from which a class shows."
    return dataclasses.replace(plan, notes=(*plan.notes, note), facts=said)


def _warning(drowned: Sequence[str], expected: Mapping[str, float], limit: int, units: str) -> str:
    named = ", ".join(f"{name} (about {expected[name]:,.0f} {units})" for name in drowned[:NAMED_MAX])
    named += f" and {len(drowned) - NAMED_MAX} more" if len(drowned) > NAMED_MAX else ""
    return (
        f"Noise drowns {named}: at this budget a class needs about {limit:,} {units} to show. Expect static there, or "
        "the look of the other classes, however good the figures over all classes are. A larger epsilon, more records "
        "of the class, or one class made of several mends that."
    )
