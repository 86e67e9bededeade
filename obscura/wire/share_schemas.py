"""What the routes about shared releases take and give; see `obscura.wire.schemas`."""

from __future__ import annotations

from pydantic import Field

from obscura.wire.schemas import ApiRecord, Identifier, Minute, ReasonRequest


class ShareRequest(ReasonRequest):
    """Request to share a release with another project, or with all. Another person must approve."""

    project_id: Identifier | None = Field(
        default=None,
        description="The other department, whose people know its id. Left out: every department, later ones too.",
    )


class ShareRecord(ApiRecord):
    """Access of another project, or of all projects, to a release."""

    id: str = Field(description="Its identifier, which never changes.")
    release_id: str = Field(description="The release.")
    project_id: str | None = Field(description="The other department; null for every one.")
    project_name: str | None = Field(description="Its name.")
    created_at: Minute = Field(description="When it was shared.")
    ended_at: Minute | None = Field(description="When that was ended; null while it is shared.")
