"""CelebA, aligned and cropped: img_align_celeba/ and list_attr_celeba.txt, with list_eval_partition.txt beside it.

Its forty attributes are no classes: their owner says which of them make the classes. Where subjects count, whose face
a picture shows is read from identity_CelebA.txt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from obscura.preparing.choices import Choices
from obscura.preparing.errors import ChoiceNeeded, PackingError
from obscura.preparing.layouts.parts import choose_part, title_of
from obscura.preparing.sources import Record, Source, Tally
from obscura.preparing.trees import FolderTree

_ATTRIBUTES, _PARTITION, _IDENTITIES = "list_attr_celeba.txt", "list_eval_partition.txt", "identity_CelebA.txt"
_PARTS = {"0": "train", "1": "val", "2": "test"}
_FOLDERS = ("img_align_celeba", "img_align_celeba/img_align_celeba", "Img/img_align_celeba")
NOT_ONE = "picture with none or several of the attributes"


@dataclass(frozen=True)
class _CelebA:
    tree: FolderTree
    attributes_path: Path
    columns: tuple[int, ...]
    names: tuple[str, ...]
    parts: dict[str, str]
    chosen: str | None
    identities: dict[str, str] | None

    @property
    def classes(self) -> tuple[str, ...]:
        return (f"not {self.names[0]}", self.names[0]) if len(self.names) == 1 else self.names

    def walk(self, tally: Tally) -> Iterator[Record]:
        for words in _lines(self.attributes_path, skip=2):
            file, values = words[0], words[1:]
            if self.chosen is not None and self.parts.get(file) != self.chosen:
                continue
            try:
                has = [values[column] == "1" for column in self.columns]
            except IndexError:
                raise PackingError(f"{_ATTRIBUTES} is damaged: the line of {file} is too short.") from None
            if len(has) > 1 and sum(has) != 1:
                tally.left_out[NOT_ONE] += 1
                continue
            label = self.classes[has[0]] if len(has) == 1 else self.names[has.index(True)]
            owner = None if self.identities is None else self.identities.get(file, "")
            yield Record(label, owner, file, partial(self.tree.read, file))


def find(folder: Path, choices: Choices, subjects: bool) -> Source | None:
    """Recognise the folder.

    Raises:
        ChoiceNeeded: No attribute was named.
        PackingError: There is no such attribute, or a file is missing.
    """
    attributes = _beside(folder, _ATTRIBUTES)
    images = next((folder / name for name in reversed(_FOLDERS) if (folder / name).is_dir()), None)
    if attributes is None or images is None:
        return None
    known = next(iter(_lines(attributes, skip=1)), [])
    if not choices.attributes:
        raise ChoiceNeeded(
            "CelebA has forty attributes and no classes. Name one that a face has or has not, such as Male, or several "
            "of which a face has one, such as Black_Hair,Blond_Hair,Brown_Hair.",
            ["--attribute Male"],
        )
    unknown = sorted(set(choices.attributes) - set(known))
    if unknown or len(set(choices.attributes)) != len(choices.attributes):
        which = f"has no attribute {unknown[0]!r}" if unknown else "is asked for one attribute twice"
        raise PackingError(f"CelebA {which}. It has {', '.join(known)}.")
    identities = _beside(folder, _IDENTITIES)
    if subjects and identities is None:
        raise PackingError(f"Whose faces they are stands in {_IDENTITIES}, which is not beside {_ATTRIBUTES}.")
    partition = _beside(folder, _PARTITION)
    parts = {} if partition is None else {file: _PARTS.get(number, number) for file, number in _pairs(partition)}
    present = sorted(set(parts.values()))
    if partition is None and choices.split is not None:
        raise PackingError(f"Which part a face belongs to stands in {_PARTITION}, which is not there.")
    chosen = choose_part("CelebA", present, choices.split) if present else None
    found = _CelebA(
        FolderTree(images),
        attributes,
        tuple(known.index(name) for name in choices.attributes),
        choices.attributes,
        parts,
        chosen,
        dict(_pairs(identities)) if subjects and identities is not None else None,
    )
    title = "CelebA" if chosen is None else title_of("CelebA", present, chosen)
    owned = None if identities is None else f"The file {_IDENTITIES}"
    return Source(title, found.walk, found.classes, owned=owned)


def _beside(folder: Path, name: str) -> Path | None:
    places = (folder / name, folder / "Anno" / name, folder / "Eval" / name)
    return next((path for path in places if path.is_file()), None)


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    for words in _lines(path):
        if len(words) != 2:
            raise PackingError(f"{path.name} is damaged: a line is not a file and a number.")
        yield words[0], words[1]


def _lines(path: Path, skip: int = 0) -> Iterator[list[str]]:
    """Yield the words of each line that has any."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                if number >= skip and (words := line.split()):
                    yield words
    except (OSError, UnicodeDecodeError) as error:
        raise PackingError(f"{path.name} cannot be read: {type(error).__name__}.") from error
