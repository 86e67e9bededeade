"""Datasets: `service.datasets.push("images/", account_id=account.id, at_most=2000)` uploads a new one."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

from obscura.client.accounts import Account
from obscura.client.async_resources import AsyncDataset, verb
from obscura.client.collections import AsyncCollection, Collection
from obscura.client.resources import Dataset
from obscura.client.transport import GONE, Named
from obscura.errors import JoinedAccount, ObscuraClientError, RequestError
from obscura.preparing import Arrays, Choices, Package, PackingError, prepare
from obscura.preparing.choices import ImageOptions, named_options
from obscura.preparing.survey import screen
from obscura.wire.schemas import Visibility

OnBytes = Callable[[int, int], None]
Say = Callable[[str], None]


class Datasets(Collection[Dataset]):
    """Declared sets of labelled images."""

    record, path = Dataset, Dataset.PATH

    def list(self, *, limit: int | None = None) -> builtins.list[Dataset]:
        """Return all datasets, newest first, except abandoned uploads; or the newest `limit`."""
        listed = self._transport.pages(Dataset, self.path)
        kept = (dataset for dataset in listed if dataset.ready_at is not None or dataset.state != "deleted")
        return [*itertools.islice(kept, limit)]

    def create(
        self,
        *,
        name: str,
        visibility: Visibility,
        classes: Sequence[str],
        height: int,
        width: int,
        channels: int,
        records_declared: int,
        subjects_declared: int | None = None,
        subjects_recognised: bool = False,
        account_id: Named | None = None,
    ) -> Dataset:
        """Declare a dataset; every argument becomes public. Then call `Dataset.push`. `datasets.push` does both."""
        body: dict[str, Any] = {"name": name, "visibility": visibility, "classes": [*classes]}
        body["account_id"] = account_id and self._transport.id_of(Account, Account.PATH, account_id)
        body |= {"height": height, "width": width, "channels": channels, "records_declared": records_declared}
        body |= {"subjects_declared": subjects_declared, "subjects_recognised": subjects_recognised}
        return self._transport.post(Dataset, self.path, body)

    @named_options
    def push(
        self,
        /,
        path: str | Path | Arrays,
        *,
        account_id: Named | None = None,
        public: bool = False,
        name: str | None = None,
        at_most: int | None = None,
        subjects_at_most: int | None = None,
        say: Say = lambda _text: None,
        agree: Callable[[], None] = lambda: None,
        on_image: Callable[[int], None] = lambda _count: None,
        on_bytes: OnBytes = lambda _done, _total: None,
        labels: str | Path | None = None,
        **push_options: Unpack[ImageOptions],
    ) -> Dataset:
        """Prepare the images of a folder or file, declare a dataset and upload them.

        Example: `service.datasets.push("images/", account_id=account.id, at_most=2000, size=64, say=print)`

        Images are converted on this machine before anything is declared, and nothing is written to disk. If the upload
        fails, the declared dataset is deleted. Only values you state, or fixed defaults, become public. Nothing is
        derived from the images.

        Args:
            path: A folder of class folders, an archive of such a folder, an .npz, IDX or Parquet file, or arrays.
            account_id: The account of private data: a record, a name or an id.
            public: Upload public data, which costs nothing and is not protected.
            name: Unique in the account. By default the folder's or file's name, with a number if that name is taken.
            at_most: Public upper limit on the number of records. Not needed for public data.
            subjects_at_most: Public upper limit on the number of subjects, if the account protects subjects.
            say: Called with each line of the findings, then with the public metadata.
            agree: Called before anything is declared. An exception stops the push.
            on_image: Called with the number of images surveyed.
            on_bytes: Called with (bytes sent, 0), because the total is not known.
            labels: Table of images and their classes, used instead of class folders.
            push_options: How images are read and converted; see `obscura.preparing.Choices`.

        Raises:
            ChoiceNeeded: You must decide something; `flags` and the message name the option.
            BrokenImages: Some images cannot be read; the message names them.
            MoreThanStated: There are more records or subjects than stated.
            PackingError: There are no images, the name is taken, a limit is missing, or the account is closed to data.
            RequestError: The service rejected the declaration or the content.
            JoinedAccount: Some images were known in another account, which now has the dataset.
        """
        if public == (account_id is not None):
            raise PackingError("Either name an account for private data, or state that the data is public; not both.")
        account = None if account_id is None else self._transport.find(Account, Account.PATH, account_id)
        if account is not None and account.closed:  # checked before any image is prepared
            raise PackingError(
                f"Account {account.name} is closed to new data. Open a separate account, with its own budget, for the "
                "new people, and combine the synthetic images of both. Or ask the owner to open it to new data again."
            )
        by_subject = account is not None and account.unit == "subject"
        require_statements(at_most, subjects_at_most, private=not public, by_subject=by_subject)
        choices = Choices(labels=labels, **push_options)
        place = Path(path) if isinstance(path, str) else path
        owner = None if account is None else account.id
        free_name = self.free_name(owner, name, place)
        package = prepare(place, choices, subjects=None if public else by_subject, on_image=on_image)
        dataset = self.declare(
            package,
            name=free_name,
            account_id=owner,
            at_most=at_most,
            subjects_at_most=subjects_at_most,
            say=say,
            agree=agree,
        )
        return self.send(dataset, package, on_bytes)

    def declare(
        self,
        package: Package,
        *,
        name: str,
        account_id: str | None,
        at_most: int | None,
        subjects_at_most: int | None = None,
        say: Say = lambda _text: None,
        agree: Callable[[], None] = lambda: None,
    ) -> Dataset:
        """Declare a prepared upload; see `push`. Without an account the dataset is public."""
        by_subject = package.private_subjects is not None
        private = account_id is not None
        require_statements(at_most, subjects_at_most, private=private, by_subject=by_subject)
        facts = declaration(package, name, account_id, at_most, subjects_at_most)
        declared = facts["records_declared"]
        package.require_within(declared, subjects_at_most)
        for line in screen(package, at_most=declared, subjects_at_most=subjects_at_most, private=private):
            say(line)
        agree()
        return self.create(**facts)

    def send(self, dataset: Dataset, package: Package, on_bytes: OnBytes = lambda _done, _total: None) -> Dataset:
        """Upload the content of a declared dataset, and delete the dataset if that fails.

        Raises JoinedAccount if another account already had some of the images.
        """

        def counted() -> Iterator[bytes]:
            sent = 0
            for chunk in package.open():
                yield chunk
                sent += len(chunk)
                on_bytes(sent, 0)

        stated = dataset.account_id
        try:
            dataset.push(counted(), format=package.format, subjects_key_check=package.subjects_key_check)
        except BaseException:
            for seconds in (0.1, 0.3, 1.0, 3.0, 5.0):
                try:
                    dataset.delete()
                    break
                except RequestError as error:
                    if error.status != 409:  # else the service still receives the upload
                        break
                    self._transport.sleep(seconds)
                except ObscuraClientError:
                    break
            raise
        if dataset.account_id is not None and dataset.account_id != stated:
            raise JoinedAccount(dataset, Account.read(self._transport, dataset.account_id).name)
        return dataset

    def free_name(self, account_id: str | None, wanted: str | None, place: Path | Arrays) -> str:
        """Return an unused dataset name in the account; raise PackingError if `wanted` is taken."""
        taken = {each.name for each in self.list() if each.account_id == account_id and each.state not in GONE}
        if wanted is not None:
            if wanted in taken:
                raise PackingError(
                    f"A dataset named {wanted!r} exists already. Choose another --name, or delete the existing dataset "
                    "with obscura datasets delete NAME."
                )
            return wanted
        usual = (default_name(place) or "images")[:90]
        numbered = (f"{usual}-{number}" for number in itertools.count(2))
        return next(name for name in itertools.chain([usual], numbered) if name not in taken)


class AsyncDatasets(AsyncCollection[AsyncDataset]):
    create = verb(Datasets.create, AsyncDataset.of)
    push = verb(Datasets.push, AsyncDataset.of)
    declare = verb(Datasets.declare, AsyncDataset.of)
    send = verb(Datasets.send, AsyncDataset.of)
    free_name = verb(Datasets.free_name)


def default_name(place: Path | Arrays) -> str:
    return "images" if isinstance(place, Arrays) else place.resolve().name


def declaration(
    package: Package, name: str, account_id: str | None, at_most: int | None, subjects_at_most: int | None
) -> dict[str, Any]:
    """Return the declaration of a prepared upload, which is public; see `Datasets.create`."""
    return {
        "name": name,
        "visibility": "public" if account_id is None else "private",
        "account_id": account_id,
        "classes": package.classes,
        "height": package.height,
        "width": package.width,
        "channels": package.channels,
        "records_declared": package.private_records if at_most is None else at_most,  # None only for public images
        "subjects_declared": subjects_at_most,
        "subjects_recognised": package.recognised,
    }


def require_statements(at_most: int | None, subjects_at_most: int | None, *, private: bool, by_subject: bool) -> None:
    """Raise PackingError if a limit that private images need is missing. Called before any image is read."""
    if subjects_at_most is not None and not by_subject:
        raise PackingError("--subjects-at-most is only for accounts whose unit is the subject. Leave it out.")
    if any(limit is not None and limit < 1 for limit in (at_most, subjects_at_most)):
        raise PackingError("--at-most and --subjects-at-most must be at least 1.")
    if private and at_most is None:
        raise PackingError(
            "--at-most is missing: an upper limit on the number of images. It becomes public and the noise depends on "
            "it, so it is never derived from your images. Choose a round number above what you will ever have, such "
            "as --at-most 2000."
        )
    if by_subject and subjects_at_most is None:
        raise PackingError(
            "--subjects-at-most is missing: an upper limit on the number of subjects, which becomes public. Choose a "
            "round number above what you will ever have, such as --subjects-at-most 500."
        )
