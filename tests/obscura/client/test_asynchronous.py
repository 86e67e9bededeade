"""The verbs for asyncio are those of the synchronous client, with the same arguments."""

import inspect

import pytest

from obscura import client
from obscura.client.resources import Live

TALKING = Live | client.Client | client.Datasets
KINDS = [kind for kind in vars(client).values() if inspect.isclass(kind) and issubclass(kind, TALKING)]
PAIRS = [(kind, getattr(client, f"Async{kind.__name__}")) for kind in KINDS if kind is not client.LocalClient]
# `ended` and `packed` are steps of `wait` and `to_imagefolder`.
ONLY_SYNCHRONOUS = {("Job", "ended"), ("Sample", "packed")}
OTHER_DEFAULTS = {("Client", "train"): {"show"}}  # several may be awaited together: their progress would be mixed


def verbs(kind: type) -> dict[str, object]:
    """The public methods that answer about one thing; class methods make it."""
    found = {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}
    inherited = set(dir(Live.__mro__[1]))  # of pydantic's BaseModel
    methods = {name: one for name, one in found.items() if inspect.isfunction(one) and name not in inherited}
    return methods | ({"__call__": kind.__call__} if "__call__" in vars(kind) else {})


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_verbs_and_their_arguments_are_the_same(sync, asynchronous):
    wanted = {name: verb for name, verb in verbs(sync).items() if (sync.__name__, name) not in ONLY_SYNCHRONOUS}
    found = verbs(asynchronous)
    assert found.keys() == wanted.keys()
    for name, verb in wanted.items():
        key = (sync.__name__, name)
        given = inspect.signature(found[name]).parameters
        asked = inspect.signature(verb).parameters
        assert list(given) == list(asked), key
        for argument, parameter in asked.items():
            assert given[argument].kind == parameter.kind, (key, argument)
            if argument not in OTHER_DEFAULTS.get(key, ()):
                assert given[argument].default == parameter.default, (key, argument)
        assert inspect.iscoroutinefunction(found[name]) or inspect.isasyncgenfunction(found[name]), key


def test_records_have_the_same_fields():
    for sync, asynchronous in PAIRS:
        if issubclass(sync, Live):
            assert asynchronous.model_fields.keys() == sync.model_fields.keys()
            properties = {name for name, value in inspect.getmembers_static(sync) if isinstance(value, property)}
            assert properties <= {name for name, _ in inspect.getmembers_static(asynchronous)}
