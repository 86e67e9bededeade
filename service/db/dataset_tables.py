"""Tables of the datasets: what was declared about an upload, where it stands, and which images an account has seen."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String, false, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from obscura.wire.words import DatasetState, Visibility
from service.db.base import Base, Id, Name, Sha256, ShortText, check, values_of
from service.db.ledger_tables import Account
from service.db.project_tables import DEFAULT_PROJECT

KEY_MISSING = "key_missing"  # the failure of a dataset that no key opens, as after a restore


class Dataset(Base):
    """An uploaded set of labelled images. All columns but the hash and the byte count are declared by its owner.

    `subjects_declared` is an upper bound on the number of subjects; a dataset that has it carries subject ids.
    `subjects_recognised` says that they are known again in every other such dataset of the project.
    `joined` says that images of it were known from another account, which then became this dataset's. `vault_key_id`
    names the key that its arrays are sealed under, without telling anything about it; PRIVATE like the content's hash.
    `upload_attempt` counts the uploads that were begun; it fences what belongs to an upload, as a job's attempt does.
    While one is received, somebody else may take over once `upload_lease_until` has passed.
    `unchecked` marks a public dataset from before public images were compared with private ones: nobody may use it.
    At `erased_at` a dataset on which nothing was ever trained was deleted: what was declared is gone, and nobody is
    shown it (`service.datasets.erasing`). `content_name` and `content_key_id` name what lies there and its key since
    somebody withdrew, and are empty before (`service.datasets.withdrawal`). `project_id` is that of its account, or of
    whoever declared it public.
    """

    __tablename__ = "datasets"
    __table_args__ = (
        check("(visibility = 'private') = (account_id IS NOT NULL)", "private_has_account"),
        check("height > 0 AND width > 0 AND channels IN (1, 3)", "image_shape"),
        check("records_declared > 0", "records_positive"),
        check(
            "subjects_declared IS NULL OR (subjects_declared > 0 AND subjects_declared <= records_declared)",
            "subjects_within_records",
        ),
        check("state != 'ready' OR (content_sha256 IS NOT NULL AND ready_at IS NOT NULL)", "ready_is_complete"),
        Index(None, "state", "created_at"),
        Index(None, "account_id", "created_at"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    account_id: Mapped[Id | None] = mapped_column(ForeignKey("accounts.id"))
    name: Mapped[Name]
    visibility: Mapped[Visibility] = mapped_column(values_of(Visibility, "visibility"))
    classes: Mapped[list[str]]
    height: Mapped[int]
    width: Mapped[int]
    channels: Mapped[int]
    records_declared: Mapped[int]
    subjects_declared: Mapped[int | None]
    subjects_recognised: Mapped[bool] = mapped_column(default=False, server_default=false())
    state: Mapped[DatasetState] = mapped_column(values_of(DatasetState, "state"), default=DatasetState.DECLARED)
    format: Mapped[ShortText | None]
    joined: Mapped[bool] = mapped_column(default=False)
    content_sha256: Mapped[Sha256 | None]
    content_bytes: Mapped[int | None] = mapped_column(BigInteger)
    vault_key_id: Mapped[Sha256 | None]
    content_name: Mapped[Id | None]
    content_key_id: Mapped[Sha256 | None]
    failure_code: Mapped[ShortText | None]
    created_at: Mapped[datetime] = mapped_column(index=True)
    ready_at: Mapped[datetime | None]
    upload_attempt: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    upload_lease_until: Mapped[datetime | None]
    unchecked: Mapped[bool] = mapped_column(default=False, server_default=false())
    erased_at: Mapped[datetime | None]
    project_id: Mapped[Id] = mapped_column(default=DEFAULT_PROJECT, server_default=DEFAULT_PROJECT)

    account: Mapped[Account | None] = relationship(lazy="raise_on_sql", viewonly=True)

    @property
    def content(self) -> str:
        """The name of its key and arrays (`service.datasets.vault`): the dataset's id, until somebody withdraws."""
        return self.content_name or self.id

    @property
    def key_id(self) -> str | None:
        """What names the key of that; None where it was uploaded before keys had ids."""
        return self.content_key_id or self.vault_key_id


class WithdrawnSubject(Base):
    """A subject that has withdrawn from an account, by the number under which recognised subjects are stored, whether
    it was ever there or not. PRIVATE: never shown.

    Uploads into the account leave its records out.
    """

    __tablename__ = "withdrawn_subjects"

    account_id: Mapped[Id] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)


class KnownUploads(Base):
    """How many uploads of a key into a project have revealed, on one day in UTC, that their images are known here.

    `day` is a date as `YYYY-MM-DD`. Rows of earlier days are removed when one is added.
    """

    __tablename__ = "known_uploads"
    __table_args__ = (check("count > 0", "count_positive"),)

    project_id: Mapped[Id] = mapped_column(primary_key=True)
    key_id: Mapped[Id] = mapped_column(primary_key=True)
    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    count: Mapped[int]


class Fingerprint(Base):
    """16 bytes of the HMAC of one decoded image, or of one subject that is recognised, and the upload that brought it.
    PRIVATE: never shown.

    It counts once that upload has been accepted. Those of private images outlive their dataset, whose account they are
    known in, unless nothing has ever read them; those of public ones go with it.
    """

    __tablename__ = "fingerprints"
    __table_args__ = (check("length(digest) = 16", "digest_length"),)

    digest: Mapped[bytes] = mapped_column(LargeBinary(16), primary_key=True)
    dataset_id: Mapped[Id] = mapped_column(ForeignKey("datasets.id"), primary_key=True, index=True)
    upload_attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
