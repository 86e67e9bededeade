"""Datasets by way of the SDK: `client.datasets()` lists them, `client.datasets.push(folder, size=64)` makes one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from service.api import schemas
from service.client.preparing import Package, PackingError, prepare, read_choices
from service.client.resources import Dataset

if TYPE_CHECKING:
    from service.client.client import Client

OnBytes = Callable[[int, int], None]


class Datasets:
    """All datasets of a service."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __call__(self) -> Iterator[schemas.DatasetRecord]:
        """All datasets, newest first."""
        return self._client.transport.pages(schemas.DatasetRecord, Dataset.PATH)

    def push(
        self,
        path: str | Path,
        *,
        account_id: str | None = None,
        public: bool = False,
        name: str | None = None,
        classes: Sequence[str] | None = None,
        records: int | None = None,
        subjects: int | None = None,
        split: str | None = None,
        size: str | int | tuple[int, int] | None = None,
        fit: str = "crop",
        background: str | None = None,
        grey: bool = False,
        labels: str | Path | None = None,
        attribute: str | None = None,
        skip_broken: bool = False,
        say: Callable[[str], None] = lambda _text: None,
        on_picture: Callable[[int], None] = lambda _count: None,
        on_bytes: OnBytes = lambda _done, _total: None,
    ) -> Dataset:
        """Prepare the pictures of a folder or file, declare a dataset that fits, and send them.

        Everything that changes pictures happens on this machine, before anything is declared; nothing is written here.

        Args:
            path: A folder of class folders, a data set in its official layout, an .npz, a .zip, or IDX files.
            account_id: The account of private data.
            public: Public data instead: costs nothing and protects nothing.
            name: For people; the folder's or file's name by default.
            classes: Names in label order, where those that were found will not do.
            records: Public upper bound on the records; their number, rounded up, by default.
            subjects: Public upper bound on the subjects, where the account protects subjects; rounded up likewise.
            split: Which part of what comes in parts: train, test, t10k, ...
            size: Pixels, 64 or "64x48" or (64, 48): width, then height. Each 8 to 128.
            fit: "crop" cuts off what stands out on both sides; "pad" fills up with the background, or with black.
            background: What transparent pictures are laid on: "white", "#ffeedd", ...
            grey: Give colours up.
            labels: A table with the columns file and label, instead of class folders.
            attribute: Of CelebA: "Male", or several of which a face has one, separated by commas.
            skip_broken: Leave out pictures that cannot be read.
            say: Told in one line what was done to the pictures, and in another what becomes public.
            on_picture: Called with the number of pictures that were looked at.
            on_bytes: Called with (bytes sent, 0).

        Raises:
            ChoiceNeeded: The pictures need a choice that was not made; `flags` and the message name what to add.
            BrokenPictures: Some cannot be read; the message names them.
            PackingError: Nothing that can be pushed is there.
            RequestError: The service refused the declaration or the content.
        """
        if public == (account_id is not None):
            raise PackingError("Give an account for private data, or say that it is public; not both.")
        by_subject = account_id is not None and self._client.account(account_id).unit == "subject"
        if subjects is not None and not by_subject:
            raise PackingError("A number of subjects is for accounts whose unit is the subject.")
        choices = read_choices(
            size=size,
            fit=fit,
            background=background,
            grey=grey,
            labels=labels,
            attribute=attribute,
            split=split,
            skip_broken=skip_broken,
        )
        place = Path(path)
        package = prepare(place, choices, subjects=by_subject, on_picture=on_picture)
        say(package.summary)
        names = list(classes or package.classes)
        declared = records if records is not None else rounded_up(package.records)
        owners = None
        if package.subjects is not None:
            owners = subjects if subjects is not None else min(rounded_up(package.subjects), declared)
        say(
            f"Declaring, and thereby making public: classes {', '.join(names)}; images {package.height} x "
            f"{package.width} x {package.channels} (height, width, channels); at most {declared} records"
            + (f" of at most {owners} subjects." if owners is not None else ".")
        )
        dataset = self._client.declare_dataset(
            name=name or place.resolve().name,
            visibility="public" if public else "private",
            account_id=account_id,
            classes=names,
            height=package.height,
            width=package.width,
            channels=package.channels,
            records_declared=declared,
            subjects_declared=owners,
        )
        return dataset.push(_counted(package, on_bytes), format=package.format)


def rounded_up(count: int) -> int:
    """Round a count up to two significant digits, so that a default declaration does not give the exact number away."""
    unit: int = 10 ** max(math.floor(math.log10(max(count, 1))) - 1, 0)
    return math.ceil(count / unit) * unit


def _counted(package: Package, on_bytes: OnBytes) -> Iterator[bytes]:
    """Stream a package and report how many bytes have gone."""
    sent = 0
    for chunk in package.open():
        yield chunk
        sent += len(chunk)
        on_bytes(sent, 0)
