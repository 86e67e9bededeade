"""Accounts and datasets: whose budget it is, and the images that it protects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from obscura.client.html import account_html
from obscura.client.live import Live
from obscura.client.transport import Transport
from obscura.wire import schemas
from obscura.wire.formats import UploadFormat

__all__ = ["Account", "Dataset"]

UPLOAD_SECONDS_MAX = 3600.0  # the answer to an upload comes after the service has decoded every image


class Account(Live, schemas.AccountRecord):
    """A population with one privacy budget. In a notebook it shows what is spent, held and left."""

    PATH = "/v1/accounts"

    def _repr_html_(self) -> str:
        return account_html(self)


class Dataset(Live, schemas.DatasetRecord):
    """A declared set of labelled images."""

    PATH = "/v1/datasets"

    @classmethod
    def declared(cls, transport: Transport, **facts: Any) -> Self:
        """Declare one; the facts are those of `obscura.wire.schemas.DatasetRequest`."""
        return cls.bound(transport, transport.request("POST", cls.PATH, json=facts))

    def push(self, body: Iterable[bytes], *, format: UploadFormat, subjects_key_check: str | None = None) -> Dataset:
        """Stream the content to the service; it is validated before this returns.

        Args:
            subjects_key_check: Of the key under which subject ids were keyed (`obscura.preparing.subjects.key_check`);
                None for ids as they are.

        Raises:
            RequestError: The content breaks a rule; the message says which.
        """
        params = {"format": format} | ({} if subjects_key_check is None else {"subjects_key_check": subjects_key_check})
        answer = self._transport.upload(
            f"{self.path}/content", body=body, params=params, timeout_seconds=UPLOAD_SECONDS_MAX
        )
        return self.bound(self._transport, answer)

    def delete(self, *, cancel_jobs: bool = False) -> Dataset:
        """Destroy the images for ever. What was spent stays spent; releases and the account's log stay.

        Args:
            cancel_jobs: Cancel the jobs that need it. What trainings have charged stays spent, and they publish
                nothing. Until their processes have stopped the dataset is `deleting`.

        Raises:
            ApiError: Trainings that need the dataset are queued or running, and are not to be cancelled.
        """
        answer = self._transport.request("DELETE", self.path, params={"cancel_jobs": cancel_jobs}, repeatable=True)
        return self.bound(self._transport, answer)
