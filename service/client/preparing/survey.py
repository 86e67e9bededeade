"""Look at every picture once, decide what all of them become, or say what their owner must choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from service.client.preparing.choices import SIDE_MAX, SIDE_MIN, Choices, fits
from service.client.preparing.errors import (
    NAMES_SHOWN_MAX,
    BrokenPictures,
    ChoiceNeeded,
    PackingError,
    Unreadable,
    some,
)
from service.client.preparing.pictures import Look, has_shape, look
from service.client.preparing.sources import Record, Source, Tally
from service.client.preparing.subjects import canonical_id
from service.client.stopping import go_on
from service.names import RULE, is_name

_SUGGESTED = (128, 64, 32, 28, 16, 8)  # sides that generators are usually made for
OnPicture = Callable[[int], None]


@dataclass
class Survey:
    """What all pictures together are. Every number counts pictures."""

    records: int = 0
    grey: int = 0
    colour: int = 0
    transparent: int = 0
    turned: int = 0
    printed: int = 0
    deep: int = 0
    animated: int = 0
    reshaped: int = 0
    scaled: int = 0
    broken: int = 0
    width: int = 0  # of the images of the dataset
    height: int = 0
    channels: int = 3
    sizes: set[tuple[int, int]] = field(default_factory=set)
    labels: Counter[str] = field(default_factory=Counter)
    subjects: set[int | str] = field(default_factory=set)
    broken_files: set[str] = field(default_factory=set)
    broken_shown: list[str] = field(default_factory=list)


def survey(source: Source, choices: Choices, tally: Tally, on_picture: OnPicture) -> Survey:
    """Look at every picture, one at a time.

    Raises:
        ChoiceNeeded: Their owner must choose something; all flags that are needed are named together.
        PackingError: There are none.
    """
    found = Survey()
    for record in source.walk(tally):
        go_on()
        try:
            seen = look(record.read())
        except Unreadable as error:
            found.broken += 1
            found.broken_files.add(record.shown)
            if len(found.broken_shown) < NAMES_SHOWN_MAX:
                found.broken_shown.append(f"{record.shown} ({error})")
            continue
        _count(found, record, seen, choices)
        on_picture(found.records)
    _require(found, choices)
    if choices.size is not None:
        found.width, found.height = choices.size
    else:
        ((found.width, found.height),) = found.sizes
    found.channels = 1 if choices.grey or not found.colour else 3
    return found


def _count(found: Survey, record: Record, seen: Look, choices: Choices) -> None:
    laid = seen.transparent
    if choices.size is not None and (seen.width, seen.height) != choices.size:
        if has_shape(seen.width, seen.height, choices.size):
            found.scaled += 1
        else:
            found.reshaped += 1
            laid = laid or choices.fit == "pad"
    elif choices.size is None and len(found.sizes) < 10_000:  # more of them say nothing new
        found.sizes.add((seen.width, seen.height))
    coloured = laid and choices.background is not None and len(set(choices.background)) > 1
    grey = seen.grey and not coloured
    found.records += 1
    found.grey += grey
    found.colour += not grey
    found.transparent += seen.transparent
    found.turned += seen.turned
    found.printed += seen.printed
    found.deep += seen.deep
    found.animated += seen.animated
    _check_label(record.label)
    found.labels[record.label] += 1
    if record.subject is not None:
        found.subjects.add(canonical_id(record.subject))


def _check_label(label: str) -> None:
    if not is_name(label):
        raise PackingError(f"{label!r} cannot be the name of a class: {RULE}.")
    if {"/", "\\"} & set(label):
        raise PackingError(f"{label!r} cannot be the name of a class, for it holds / or \\.")
    if label in (".", "..") or label[1:2] == ":":
        raise PackingError(f"{label!r} cannot be the name of a class, for no folder can have it.")


def _require(found: Survey, choices: Choices) -> None:
    """Ask for every choice that the pictures need, all at once."""
    why, flags = [], []
    if choices.size is None and found.sizes:
        sides = sorted(min(size) for size in found.sizes)
        small, large = min(found.sizes, key=_area), max(found.sizes, key=_area)
        if len(found.sizes) > 1:
            why.append(
                f"The pictures have different sizes, from {small[0]} x {small[1]} to {large[0]} x {large[1]} (width x "
                "height), and the images of a dataset have one."
            )
        elif not fits(*small):
            why.append(
                f"The pictures are {small[0]} x {small[1]} (width x height), and images have sides of {SIDE_MIN} to "
                f"{SIDE_MAX} pixels."
            )
        if why:
            why.append("What stands out over the size is cut off on both sides (--fit pad fills up instead).")
            usual = max(sides[len(sides) // 2], SIDE_MIN)
            flags.append(f"--size {next(side for side in _SUGGESTED if side <= usual)}")
    if choices.background is None and found.transparent:
        which = "One picture has" if found.transparent == 1 else f"{found.transparent:,} pictures have"
        why.append(f"{which} transparent parts: say what colour lies behind them.")
        flags.append("--background white")
    if found.broken and not choices.skip_broken:
        which = "One picture cannot be read:" if found.broken == 1 else f"{found.broken:,} pictures cannot be read:"
        why.append(f"{which} {some(found.broken_shown, found.broken)}. Mend them, or leave them out.")
        raise BrokenPictures(" ".join(why), [*flags, "--skip-broken"], found.broken, found.broken_shown)
    if not found.records:
        raise PackingError("There is no picture to send.")
    if flags:
        raise ChoiceNeeded(" ".join(why), flags)


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]
