"""Class folders (`class/image.png`, or `class/subject/image.png`), also inside `train/`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from unicodedata import normalize

from obscura.errors import ChoiceNeeded, PackingError, some
from obscura.image_types import image_suffixes, names_of
from obscura.preparing.choices import Choices
from obscura.preparing.questions import ask_about_owners
from obscura.preparing.sources import OTHER, Record, Source, Tally
from obscura.preparing.subjects import by_subject
from obscura.preparing.trees import Tree, all_files, all_images, below, folders, images_in, suffix_of
from obscura.wire.meanings import is_kind, is_part, is_split, masks_among
from obscura.wire.uploads import is_junk, is_wrapper

_ARCHIVES = frozenset({".zip", ".tar", ".gz", ".tgz", ".7z", ".rar"})

LOOSE = "image outside of the class folders"


def class_folders(tree: Tree, choices: Choices, *, subjects: bool | None) -> Source:
    base, title = base_of(tree, choices, subjects=bool(subjects), kinds=True)
    found = folders(tree, base)
    kind, note = _kind_inside(tree, base, found, choices.split)
    title = ", ".join(filter(None, (title, note)))
    direct = any(images_in(tree, below(base, name)) for name in found)
    if not direct:
        if not subjects and images_in(tree, base):
            raise ChoiceNeeded(
                f"{base or tree.name} contains images, but no class folders. Put the images into one folder for each "
                "class, or name a table with the columns file and label.",
                ["--labels labels.csv"],
            )
        if not any(True for name in found for _ in all_images(tree, below(base, name), Tally())):
            archives = [name for name in all_files(tree) if suffix_of(name) in _ARCHIVES]
            arrays = [name for name in all_files(tree) if suffix_of(name) == ".npz"]
            if arrays:
                raise PackingError(
                    f"{tree.name} contains no images, but arrays ({some(arrays)}). Push each .npz by itself: obscura "
                    f"datasets push {tree.name}/{arrays[0]}"
                )
            packed = f", but archives ({some(archives)}): unpack them" if archives else ""
            raise PackingError(
                f"{tree.name} contains no class folders with images{packed}. Images are files such as "
                f"{names_of(taken=False, last='and')}."
            )
    for name in found:
        require_no_masks(tree, below(base, name, kind))
    if subjects:
        ask_about_owners({name: folders(tree, below(base, name, kind)) for name in found})

    def walk(tally: Tally) -> Iterator[Record]:
        tally.left_out[LOOSE] += len(images_in(tree, base, tally))
        for name in folders(tree, base, tally):
            at, label, count, others = below(base, name, kind), normalize("NFC", name), 0, tally.left_out[OTHER]
            inner = folders(tree, at, tally if subjects else None)
            here = [] if subjects is None else images_in(tree, at, tally)
            if subjects and here:
                raise PackingError(
                    f"{tree.name} has images outside the folders of subjects. The account protects all records of a "
                    "subject together: put each image into a folder of its subject, inside the class folder "
                    "(class/subject/image.png)."
                )
            if subjects is False and any(True for name in inner for _ in all_images(tree, below(at, name), Tally())):
                why = f"{tree.name} has folders inside its class folders, like folders of subjects"
                raise by_subject(why, "Or put the images directly into the class folders, or name a table (--labels).")
            for owner in inner if subjects else [""]:
                inside = all_images(tree, below(at, owner), tally)
                for path in [below(at, image) for image in here] if subjects is False else inside:
                    count += 1
                    yield Record(label, owner or None, path.removeprefix(f"{base}/"), partial(tree.read, path))
            if not count and tally.left_out[OTHER] > others:
                tally.lost.append(label)
            elif not count:
                tally.left_out["empty class folder"] += 1

    owned = "The names of the folders inside the class folders" if subjects else None
    return Source(title, walk, folders=True, owned=owned)


def _kind_inside(tree: Tree, base: str, found: list[str], wanted: str | None) -> tuple[str, str]:
    inside = [folders(tree, below(base, name)) for name in found]
    kinds = sorted({kind for each in inside for kind in each})
    masks = masks_among(kinds)
    if not kinds or not all(is_kind(name) or name in masks for name in kinds) or not all(map(len, inside)):
        if wanted is not None and not base:
            raise PackingError(f"{tree.name} does not come in parts such as train/ and test/: leave --split out.")
        return "", ""
    kind = next((kind for kind in kinds if wanted is not None and kind.casefold() == wanted.casefold()), kinds[0])
    if len(kinds) > 1 and kind.casefold() != (wanted or "").casefold():
        raise ChoiceNeeded(
            f"The class folders of {tree.name} contain {', '.join(f'{name}/' for name in kinds)}. Choose the folder "
            "with the images.",
            [f"--split {min(kinds, key=lambda name: (name in masks, not name.casefold().startswith('im')))}"],
        )
    others = " and ".join(f"{name}/" for name in kinds if name != kind)
    return kind, f"{kind}/ of every class" + (f" (not {others}; choose with --split)" if others else "")


def require_no_masks(tree: Tree, at: str, suffixes: frozenset[str] | None = None) -> None:
    """Raise if a folder, or a folder inside it, has masks beside the images (or beside files with these suffixes)."""
    kept = [name for name in tree.files(at) if not is_junk(name)]
    wanted = tuple(image_suffixes() if suffixes is None else suffixes)
    files = [name for name in kept if name.lower().endswith(wanted)]
    stems = dict.fromkeys(name[: -len(max(filter(name.lower().endswith, wanted), key=len))] for name in files)
    inner = folders(tree, at)
    masks = masks_among(stems) or masks_among([*inner, *(["images"] if stems else [])])
    if masks:
        raise ChoiceNeeded(
            f"{at or tree.name} contains masks beside images, and each mask would become an image of the class: "
            f"{some(masks)}. Move the masks out of the class folders, or name the images in a table with the columns "
            "file and label.",
            ["--labels labels.csv"],
        )
    for name in inner:
        require_no_masks(tree, below(at, name), suffixes)


def base_of(
    tree: Tree, choices: Choices, *, subjects: bool, holds: Callable[[str], bool] | None = None, kinds: bool = False
) -> tuple[str, str]:
    """Return the path of the folder that contains the class folders, and a title for that path.

    Descends into wrapper folders, and into the selected part. A wrapper folder is the only folder at its level, and
    contains the class folders. With `subjects`, folders inside class folders are subjects. `holds` returns whether a
    folder contains images directly; None checks for image files. With `kinds`, `split` may name a folder inside the
    class folders.
    """
    base, note, split = "", "", choices.split
    classes = {normalize("NFC", name) for name in choices.classes or ()}
    holds = holds or (lambda at: bool(images_in(tree, at)))
    while True:
        top = folders(tree, base)
        if len(top) > 1:
            top = [name for name in top if any(True for _ in all_files(tree, below(base, name)))] or top
        if holds(base) or not top or (len(top) > 1 and {normalize("NFC", name) for name in top} <= classes):
            break
        inside = {name: folders(tree, below(base, name)) for name in top}
        wanted = next((name for name in top if split is not None and name.casefold() == split.casefold()), None)
        words = {(found := re.match(r"[^-_ .]+[-_ .]", name)) and found[0] for name in top}
        shared = words.pop() if len(top) > 1 and len(words) == 1 else None
        apart = {name: name.removeprefix(shared or "") for name in top}  # without a common prefix
        parts = [name for name in top if (is_part(name) or is_split(apart[name])) and inside[name]]
        if wanted is not None:
            split = None
        elif len(top) == 1:
            at = below(base, top[0])
            by_subject = subjects and not is_part(top[0])
            inner = {name: by_subject and holds(below(at, name)) for name in inside[top[0]]}
            if holds(at) or not is_wrapper(top[0], inner, classes, subjects=by_subject):
                break
            wanted = top[0]
        elif parts:
            wanted = _usual_part(tree, apart, parts, split)
        else:
            break
        others = " and ".join(f"{name}/" for name in parts if name != wanted)
        note = f" (not {others}; choose with --split)" if others else note
        base = below(base, wanted)
    if split is not None and not kinds:
        raise PackingError(f"{tree.name} does not come in parts such as train/ and test/: leave --split out.")
    return base, f"{base}/{note}" if base else ""


def _usual_part(tree: Tree, apart: dict[str, str], parts: list[str], wanted: str | None) -> str:
    top = list(apart)
    train = [name for name in parts if apart[name].casefold().startswith("train")]
    if wanted is not None:
        raise PackingError(f"{tree.name} comes in parts: choose one with --split ({', '.join(top)}).")
    if len(train) != 1 or not all(is_split(apart[name]) or is_split(name) for name in top):
        raise ChoiceNeeded(
            f"{tree.name} has the folders {', '.join(top)}, which look like parts of a dataset, not like classes. "
            "Choose the folder that contains the class folders.",
            [f"--split {(train or parts)[0]}"],
        )
    return train[0]
