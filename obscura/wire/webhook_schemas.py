"""What the routes about webhooks take and give; see `obscura.wire.schemas`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field

from obscura.wire.names import clean_text
from obscura.wire.schemas import ApiRecord, ApiRequest, Minute

URL_CHARACTERS_MAX = 500
Url = Annotated[
    str,
    Field(min_length=1, max_length=URL_CHARACTERS_MAX),
    AfterValidator(partial(clean_text, characters_max=URL_CHARACTERS_MAX)),
]


class WebhookRequest(ApiRequest):
    """Register an address for events."""

    url: Url = Field(
        description="Where requests are sent: https, to a public address unless the operator allows others."
    )


class WebhookRecord(ApiRecord):
    """An address that receives the events of a project, without its secret."""

    id: str = Field(description="Its identifier, which never changes.")
    project_id: str | None = Field(description="Whose events it is told; null for the installation's.")
    url: str = Field(description="Where requests are sent.")
    state: str = Field(
        description="`active`; `failing`: the last request was not answered with 2xx; or `revoked`: the key that "
        "created it, or the owner of that key, was revoked."
    )
    failing_since: Minute | None = Field(description="Since when no request is answered with 2xx; null if it is.")
    created_at: Minute = Field(description="When it was made.")


class NewWebhookRecord(WebhookRecord):
    """A webhook with its new secret, which is returned only once."""

    secret: str = Field(description="What its requests are signed under. Shown this once.")


class WebhookTestRecord(ApiRecord):
    """Result of a test request to a webhook."""

    delivered: bool = Field(description="Whether it was answered with 2xx.")
    status: int | None = Field(description="The status of the answer; null where there was none.")
    reason: str | None = Field(description="Why there was none; null where there was one.")
