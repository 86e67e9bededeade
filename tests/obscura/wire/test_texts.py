"""Texts of people: any script is accepted, hidden characters are refused everywhere; ratios of classes, and grids."""

import unicodedata
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from obscura.wire.schemas import ApiRequest
from obscura.wire.texts import (
    REASON_CHARACTERS_MAX,
    GridRefused,
    clean_text,
    is_name,
    read_class_fractions,
    trials_of,
)
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
        with pytest.raises(InvalidInput, match="change its direction"):
            act(f"a{bad}b")


def test_no_function_names_anything_so(factory, now):
    for bad in (REFUSED["turns around"], REFUSED["C1"], " "):
        for act in (
            lambda s, name=bad: auth.create_key(s, name=name, scopes=["read"], now=now),
            lambda s, name=bad: admins.admit_on_machine(s, name=name, now=now),
            lambda s, name=bad: ledger.open_account(s, **{**ACCOUNT, "name": name}, now=now),
            lambda s, name=bad: ledger.open_account(s, **{**ACCOUNT, "name": "people", "owner": name}, now=now),
        ):
            with pytest.raises(InvalidInput, match="change its direction"), transaction(factory) as session:
                act(session)


@pytest.mark.parametrize(
    ("grids", "found"),
    [
        (["a=1,2"], [{"a": 1}, {"a": 2}]),
        (
            ["a=0, 0.5", " b = x , true"],
            [{"a": 0, "b": "x"}, {"a": 0, "b": True}, {"a": 0.5, "b": "x"}, {"a": 0.5, "b": True}],
        ),
        (['a=["x,y", null]'], [{"a": "x,y"}, {"a": None}]),
        (["a=" + "[" * 5000 + ",x"], [{"a": "[" * 5000}, {"a": "x"}]),
    ],
)
def test_grids_give_every_combination(grids, found):
    assert trials_of(grids, {}) == [{"options": options} for options in found]


def test_what_is_tried_stands_in_for_what_is_fixed_and_epsilon_is_no_option():
    assert trials_of(["epsilon=0.5,1", "a=3"], {"a": 1, "b": 2}) == [
        {"options": {"a": 3, "b": 2}, "epsilon": 0.5},
        {"options": {"a": 3, "b": 2}, "epsilon": 1},
    ]


@pytest.mark.parametrize(
    ("grids", "position", "said"),
    [
        (["a=1"], None, "give 1 trial; a sweep must have 2 to 64"),
        (["a"], 0, "Write the values of a"),
        (["b=1,2", "a="], 1, "Write the values of a"),
        (["=1,2"], 0, "Write the name of an option"),
        (["a=1,2", "a=3,4"], 1, "a occurs twice"),
        (["a=" + ",".join("0" * 65)], None, "65 trials"),
        ([f"{name}=" + ",".join("0" * 900) for name in "abcd"], None, "656,100,000,000 trials"),
        (["a=[]"], None, "0 trials"),
        ([], None, "1 trial"),
    ],
)
def test_grids_that_are_no_search_are_refused(grids, position, said):
    with pytest.raises(GridRefused, match=said) as refused:
        trials_of(grids, {})
    assert refused.value.position == position


CLASSES = ("normal", "sick", "a=b, c", "7")
FOUR = {"normal": 90.0, "sick": 5.0, "a=b, c": 4.0, "7": 1.0}


@pytest.mark.parametrize(
    "text", ["90,5,4,1", " 90 , 5.0,4e0,1 ", "normal=90,sick=5,a=b, c=4,7=1", "7 = 1, a=b, c = 4 ,sick=5, normal= 9e1"]
)
def test_numbers_and_names_say_the_same(text):
    read = read_class_fractions(text, CLASSES)
    assert read == FOUR
    assert list(read) == list(CLASSES)


def test_some_classes_are_enough_where_the_others_may_be_left_out():
    assert read_class_fractions("sick=2,normal=1", CLASSES, every=False) == {"normal": 1.0, "sick": 2.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,2", "2 numbers for 4 classes: .* normal, sick"),
        ("normal=1,well=2", "'well=2' is not NAME=NUMBER of a declared class"),
        ("normal=1", "no number for sick, a=b, c, 7"),
        ("normal=1,normal=2", "normal is named twice"),
        ("normal=x", "'normal=x' is not"),
        ("", "'' is not|no number"),
        ("1,2,3,0", "7=0 is not a number from"),
        ("1,2,3,-4", "7=-4 is not a number from"),
        ("1,2,3,1e99", "is not a number from"),
        ("1,2,3,nan", "is not NAME=NUMBER"),
        ("90%,5%,4%,1%", "is not NAME=NUMBER"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(text, says):
    with pytest.raises(ValueError, match=says):
        read_class_fractions(text, CLASSES)


def test_names_in_a_refusal_are_bounded():
    many = [f"class {number}" for number in range(1000)]
    with pytest.raises(ValueError, match="and 987 more") as refused:
        read_class_fractions("class 5=1", many[:5] + many[6:])
    assert len(str(refused.value)) < 400
