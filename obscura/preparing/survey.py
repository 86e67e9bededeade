"""Look at every picture once and count what will be done to them. What they become follows from none of them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from obscura.preparing.choices import SIDE_USUAL, Choices, Size, fits
from obscura.preparing.depth import Depths
from obscura.preparing.errors import NAMES_SHOWN_MAX, BrokenPictures, PackingError, Unreadable, some
from obscura.preparing.pictures import Look, has_shape, look
from obscura.preparing.sources import Record, Source, Tally
from obscura.preparing.subjects import require_plain_ids, require_told_apart, subject_key
from obscura.stopping import go_on
from obscura.wire.names import RULE, is_name
from obscura.wire.subjects import SubjectId

OnPicture = Callable[[int], None]
SHOWN_MAX = 20_000  # names of files that are kept to look at


@dataclass
class Survey:
    """What all pictures together are. Every number counts pictures. PRIVATE, but for the size and colour.

    `labels` counts them by class, `subjects` by subject; `owners` are the ids as they are written, each with a
    picture. `contents` are digests, one for each picture, and `content_labels` the numbers of its class.
    """

    records: int = 0
    grey: int = 0
    colour: int = 0
    transparent: int = 0
    turned: int = 0
    printed: int = 0
    deep: int = 0
    animated: int = 0
    surplus: int = 0
    reshaped: int = 0
    scaled: int = 0
    broken: int = 0
    depths: Depths = field(default_factory=Depths)
    width: int = 0  # of the images of the dataset
    height: int = 0
    channels: int = 3
    labels: Counter[str] = field(default_factory=Counter)
    subjects: Counter[int | str] = field(default_factory=Counter)
    owners: dict[SubjectId, str] = field(default_factory=dict)
    contents: array[int] = field(default_factory=lambda: array("Q"))
    content_labels: array[int] = field(default_factory=lambda: array("L"))
    numbers: dict[str, int] = field(default_factory=dict)
    shown: list[str] = field(default_factory=list)
    broken_files: set[str] = field(default_factory=set)
    broken_shown: list[str] = field(default_factory=list)
    lost: dict[str, None] = field(default_factory=dict)  # classes of which no picture is left, in order


def survey(source: Source, choices: Choices, tally: Tally, on_picture: OnPicture) -> Survey:
    """Look at every picture, one at a time.

    Raises:
        BrokenPictures: Some cannot be read, or a class has none that can, and that was not said to be left out.
        ChoiceNeeded: Ids of subjects look alike.
        PackingError: There are none.
    """
    found = Survey()
    found.width, found.height = _size(source, choices)
    found.channels = 1 if choices.grey or (source.shape is not None and source.shape[2] == 1) else 3
    for record in source.walk(tally):
        go_on()
        try:
            seen = look(record.read())
        except Unreadable as error:
            found.broken += 1
            found.lost[record.label] = None
            found.broken_files.add(record.shown)
            if len(found.broken_shown) < NAMES_SHOWN_MAX:
                found.broken_shown.append(f"{record.shown} ({error})")
            continue
        _count(found, record, seen, choices)
        on_picture(found.records)
    found.lost = dict.fromkeys(label for label in (*tally.lost, *found.lost) if not found.labels[label])
    _require(found, choices)
    require_plain_ids(found.owners, join=choices.join_subjects)
    if not choices.join_subjects:
        require_told_apart(found.owners)
    return found


def _size(source: Source, choices: Choices) -> Size:
    """What was stated, else what the format of arrays says of all of them, else a fixed size."""
    if choices.size is not None:
        return choices.size
    if source.shape is not None and fits(source.shape[1], source.shape[0]):
        return source.shape[1], source.shape[0]
    return SIDE_USUAL, SIDE_USUAL


def _count(found: Survey, record: Record, seen: Look, choices: Choices) -> None:
    if (seen.width, seen.height) != (found.width, found.height):
        if has_shape(seen.width, seen.height, (found.width, found.height)):
            found.scaled += 1
        else:
            found.reshaped += 1
    found.records += 1
    found.grey += seen.grey
    found.colour += not seen.grey
    found.transparent += seen.transparent
    found.turned += seen.turned
    found.printed += seen.printed
    found.deep += seen.deep
    if seen.depth is not None:
        found.depths.add(seen.depth)
    found.animated += seen.animated
    found.surplus += seen.surplus
    if not is_name(record.label):
        raise PackingError(f"{record.label!r} cannot be the name of a class: {RULE}; no space begins or ends it.")
    found.labels[record.label] += 1
    found.contents.append(seen.digest)
    found.content_labels.append(found.numbers.setdefault(record.label, len(found.numbers)))
    if len(found.shown) < SHOWN_MAX:
        found.shown.append(record.shown)
    if record.subject is not None:
        found.subjects[subject_key(record.subject, join=choices.join_subjects)] += 1
        found.owners.setdefault(record.subject, record.shown)


def _require(found: Survey, choices: Choices) -> None:
    if found.lost and not choices.skip_broken:
        lost, such = list(found.lost), f", such as {found.broken_shown[0]}" if found.broken_shown else ""
        which = f"the class {lost[0]}" if len(lost) == 1 else f"{len(lost)} classes ({some(lost, len(lost))})"
        why = f"No picture of {which} can be read, though there are files{such}. Mend them, or leave them out."
        raise BrokenPictures(why, ["--skip-broken"], found.broken, lost)
    if found.broken and not choices.skip_broken:
        which = "One picture cannot be read:" if found.broken == 1 else f"{found.broken:,} pictures cannot be read:"
        why = f"{which} {some(found.broken_shown, found.broken)}. Mend them, or leave them out."
        raise BrokenPictures(why, ["--skip-broken"], found.broken, found.broken_shown)
    if not found.records:
        raise PackingError("There is no picture to send.")
    found.depths.require(choices.scale, found.records - found.deep)
