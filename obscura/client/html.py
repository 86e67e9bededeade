"""Show releases and accounts in a notebook. All names are escaped."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from typing import Any

from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.release_schemas import ReleaseRecord
from obscura.wire.schemas import AccountRecord
from obscura.wire.wording import show_epsilon, show_sure


def release_html(release: ReleaseRecord, card: Mapping[str, Any], grid_png: bytes | None) -> str:
    """Render a release: name, guarantee and, for a generator, a grid of samples."""
    facts = {
        "release": release.id,
        "guarantee": f"epsilon {show_epsilon(card['epsilon'], up=True)}, delta {card['delta']:g}",
        "hides": UNIT_WORDS.get(card.get("unit", ""), "-"),
        "not covered": "; ".join(card.get("not_covered", ())) or "-",
    }
    image = ""
    if grid_png is not None:
        data = base64.b64encode(grid_png).decode("ascii")
        image = f'<img alt="Synthetic samples, one row for each class" src="data:image/png;base64,{data}">'
    return f"<h4>{escape(release.name)}</h4>{image}{_table(facts)}"


def account_html(account: AccountRecord) -> str:
    """Render the budget of an account as a bar and in numbers."""
    balance = account.balance
    parts = (("spent", "#b3261e", balance.spent_fraction), ("held", "#e0a100", balance.reserved_fraction))
    bar = "".join(
        f'<span title="{name}" style="display:inline-block;height:100%;width:{100 * share:.2f}%;'
        f'background:{colour}"></span>'
        for name, colour, share in parts
    )
    facts = {
        "account": account.id,
        "spent": f"epsilon {show_epsilon(balance.spent_epsilon, up=True)}",
        "held": f"epsilon {show_epsilon(balance.reserved_epsilon, up=True)}",
        "left": f"epsilon {show_epsilon(balance.left_epsilon, up=False)} of {show_epsilon(account.epsilon, up=False)}",
        "delta": f"{account.delta:g}",
        "hides": UNIT_WORDS.get(account.unit, account.unit),
        "promises": f"epsilon {show_epsilon(balance.guaranteed_epsilon, up=True)} for all that is ever published",
        "certainty": f"{show_sure(balance.attacker_certainty_max)} at most, for somebody who was 50% sure",
    }
    frame = '<div style="height:12px;max-width:400px;background:#d7e3d4">'
    return f"<h4>{escape(account.name)}</h4>{frame}{bar}</div>{_table(facts)}"


def _table(facts: Mapping[str, str]) -> str:
    rows = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
    return f"<table>{''.join(rows)}</table>"
