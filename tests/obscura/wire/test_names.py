"""Text for people: any script is accepted; what cannot be seen, or turns the text around, is refused everywhere."""

import unicodedata
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from obscura.wire.names import REASON_CHARACTERS_MAX, clean_text, is_name, same_names
from obscura.wire.schemas import ApiRequest
from service import ledger
from service.api.routes import routers
from service.db.session import transaction
from service.errors import InvalidInput, require_name, short_reason
from service.identity import admins, auth
from tests.service.api.conftest import ACCOUNT

ORDINARY = [
    "boot", "T-shirt/top", "0", "Straßenbahn 3", "naïve café", "日本語", "مِنزَل", "שלום", "γάμμα (γ)", "🐈", "x" * 100,
    "می\u200cخواهم",  # Persian
    "क्\u200dष",  # Hindi
]  # fmt: skip
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
    "joiner of Latin letters": "c\u200dat",
    "non-joiner of Latin letters": "c\u200cat",
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


@pytest.mark.parametrize("name", [*ORDINARY, *REFUSED.values()], ids=ascii)
def test_a_name_can_be_read(name):
    assert is_name(name) == (name in ORDINARY)


def test_every_control_and_format_character_is_refused_but_joiners_between_letters():
    by_category: dict[str, list[str]] = {}
    for n in range(0x110000):
        by_category.setdefault(unicodedata.category(chr(n)), []).append(chr(n))
    hidden = [c for category in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in by_category[category]]
    for category in ("Co", "Cn"):  # private and unassigned: a million
        found = by_category[category]
        hidden += [*found[:1000], *found[1000::97], found[-1]]
    assert {c for c in hidden if is_name(f"a{c}b")} == set()
    assert {c for c in hidden if is_name(f"می{c}خو")} == {"\u200c", "\u200d"}


def test_text_is_kept_in_one_form():
    assert clean_text(" cafe\u0301\u00a0au\u3000lait\u2003") == "café au lait"
    assert short_reason("x" * REASON_CHARACTERS_MAX + " ") == "x" * REASON_CHARACTERS_MAX
    with pytest.raises(ValueError, match="1 to 100 characters"):
        clean_text("\u0958" * 51)  # form C writes this letter as two


# Ids of subjects are compared with those of uploads, and shown nowhere: whatever an upload held must be withdrawable.
NOT_FOR_PEOPLE = {"WithdrawalRequest.subjects"}
HARMLESS_WITHIN = {"empty", "blank", "too long", "no-break space", "ideographic space"}
UNREADABLE = [bad for kind, bad in REFUSED.items() if kind not in HARMLESS_WITHIN and "with a space" not in kind]


def requests(kind: type[ApiRequest] = ApiRequest) -> Iterator[type[ApiRequest]]:
    for below in kind.__subclasses__():
        yield below
        yield from requests(below)


def values_with(text: str, schema: dict[str, Any], known: dict[str, Any]) -> Iterator[Any]:
    """Yield values of a JSON Schema that hold a text, one for each place where a text can be."""
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    for part in schema.get("anyOf", ()):
        yield from values_with(text, part, known)
    if schema.get("type") == "string" and not {"enum", "const", "format"} & set(schema):
        yield text
    if schema.get("type") == "array":
        yield from ([value] * schema.get("minItems", 1) for value in values_with(text, schema["items"], known))
    if "additionalProperties" in schema and "properties" not in schema:
        yield {text: 1}
        if schema["additionalProperties"] is True:
            yield from ({"a": text}, {"a": [text]}, {"a": {text: [{"b": text}]}})


def accepts(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


def test_every_text_of_every_request_can_be_read_by_people():
    assert routers()  # so that every schema is loaded
    texts = set()
    for request in set(requests()):
        for name, field in request.model_fields.items():
            adapter: TypeAdapter[Any] = TypeAdapter(Annotated[field.annotation, field])
            schema = adapter.json_schema()
            if f"{request.__name__}.{name}" in NOT_FOR_PEOPLE:
                continue
            if any(accepts(adapter, value) for value in values_with("Köln 患者", schema, schema.get("$defs", {}))):
                texts.add(f"{request.__name__}.{name}")
            for bad in UNREADABLE:
                for value in values_with(f"a{bad}b", schema, schema.get("$defs", {})):
                    assert not accepts(adapter, value), (request, name, bad)
    assert {"AccountRequest.name", "DatasetRequest.classes", "AdmissionRequest.reason", "JobRequest.options"} <= texts
    assert {"WebhookRequest.url", "SampleRequest.classes", "AdmissionRequest.introduction", "KeyRequest.name"} <= texts
    assert len(texts) > 20


@pytest.mark.parametrize("bad", UNREADABLE, ids=ascii)
def test_forms_and_commands_refuse_what_requests_refuse(bad):
    for act in (short_reason, lambda text: require_name(text, "A name")):
        with pytest.raises(InvalidInput, match="direction of the text"):
            act(f"a{bad}b")


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
