"""Errors name Python arguments in Python, and flags and commands on the command line."""

import pytest

from obscura.errors import ChoiceNeeded, NoSuchName, PackingError, in_python


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("Choose a round number, such as --at-most 2000.", "Choose a round number, such as at_most=2000."),
        ("it comes in parts: choose one with --split.", "it comes in parts: choose one with `split`."),
        ("confirm them with --window auto. Or", 'confirm them with window="auto". Or'),
        ("add --window LOW,HIGH.", 'add window="LOW,HIGH".'),
        ("name all (--classes classes.txt, one per line)", 'name all (classes="classes.txt", one per line)'),
        ("with --every 5 every fifth slice", "with every=5 every fifth slice"),
        ("Give the folder: obscura datasets push FOLDER", "Give the folder: service.datasets.push(FOLDER)"),
        ("delete it with obscura datasets delete NAME.", "delete it with service.datasets.get(NAME).delete()."),
        (
            "obscura accounts create NAME --unit subject --epsilon E --delta D. If",
            'service.accounts.create(NAME, unit="subject", epsilon=E, delta=D). If',
        ),
    ],
)
def test_flags_and_commands_become_arguments_and_calls(text, python):
    assert in_python(text) == str(PackingError(text)) == python


def test_a_choice_is_stated_in_both_forms():
    error = ChoiceNeeded("Two images are broken (--skip-broken).", ["--skip-broken", "--classes a,b c", "--depth 12"])
    assert error.args[0].endswith("(--skip-broken). Add --skip-broken --classes 'a,b c' --depth 12.")
    assert str(error) == ('Two images are broken (`skip_broken`). Add skip_broken=True, classes="a,b c", depth=12.')


def test_what_is_missing_is_listed_by_python():
    error = NoSuchName("There is no release 'x'. To see all: obscura releases list")
    assert str(error) == "There is no release 'x'. To see all: service.releases.list()"
