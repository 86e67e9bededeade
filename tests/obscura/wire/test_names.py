"""Names: what can be read may be one, in any script; what cannot be seen, or turns the text around, may not."""

import unicodedata

import pytest

from obscura.wire.names import is_name, same_names
from service import admins, auth, ledger
from service.db.session import transaction
from service.errors import InvalidInput
from tests.service.api.conftest import ACCOUNT

ORDINARY = [
    "boot",
    "T-shirt/top",
    "0",
    "Straßenbahn 3",
    "naïve café",
    "日本語",
    "مِنزَل",
    "می\u200cخواهم",  # Persian
    "क्\u200dष",  # Hindi
    "שלום",
    "γάμμα (γ)",
    "🐈",
    "x" * 100,
]
REFUSED = {
    "empty": "",
    "blank": " ",
    "begins with a space": " cat",
    "ends with a space": "cat ",
    "no-break space": "cat\u00a0",
    "ideographic space": "\u3000cat",
    "turns around": "cat\u202egnp",
    "isolates": "\u2066cat\u2069",
    "right-to-left mark": "cat\u200f",
    "zero width": "c\u200bat",
    "word joiner": "c\u2060at",
    "byte order mark": "\ufeffcat",
    "soft hyphen": "c\u00adat",
    "joiner at the end": "cat\u200d",
    "joiner at the beginning": "\u200ccat",
    "joiner beside a space": "black\u200d cat",
    "two joiners": "c\u200d\u200dat",
    "C0": "c\x07at",
    "delete": "c\x7fat",
    "C1": "c\x85at",
    "line separator": "c\u2028at",
    "paragraph separator": "c\u2029at",
    "private use": "c\ue000at",
    "unassigned": "c\u0378at",
    "surrogate": "c\ud800at",
    "tag": "cat\U000e0041",
    "variation selector": "cat\ufe0f",
    "Hangul filler": "\u3164",
    "braille blank": "\u2800",
    "too long": "x" * 101,
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_names_pass(name):
    assert is_name(name)


@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_no_name(name):
    assert not is_name(name)


def test_every_control_and_format_character_is_refused_but_joiners_between_letters():
    by_category: dict[str, list[str]] = {}
    for n in range(0x110000):
        by_category.setdefault(unicodedata.category(chr(n)), []).append(chr(n))
    hidden = [c for category in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in by_category[category]]
    for category in ("Co", "Cn"):  # private and unassigned: a million
        found = by_category[category]
        hidden += [*found[:1000], *found[1000::97], found[-1]]
    assert {c for c in hidden if is_name(f"a{c}b")} == {"\u200c", "\u200d"}


def test_names_are_the_same_however_their_accents_are_stored():
    assert same_names(["café", "boot", "cafe\u0301"]) == ["cafe\u0301"]
    assert same_names(["cafe", "café"]) == []


def test_no_function_names_anything_so(factory, now):
    for bad in (REFUSED["turns around"], REFUSED["C1"], " "):
        for act in (
            lambda s, name=bad: auth.create_key(s, name=name, scopes=["read"], now=now),
            lambda s, name=bad: admins.admit_on_machine(s, name=name, now=now),
            lambda s, name=bad: ledger.open_account(s, **{**ACCOUNT, "name": name}, now=now),
            lambda s, name=bad: ledger.open_account(s, **{**ACCOUNT, "name": "people", "owner": name}, now=now),
        ):
            with pytest.raises(InvalidInput, match="direction of the text"), transaction(factory) as session:
                act(session)
