"""Tables of datasets: declarations and upload states, and fingerprints of images by account."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, LargeBinary, String, false, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from obscura.wire.words import DatasetState, Visibility
from service.db.access_tables import DEFAULT_PROJECT
from service.db.base import Base, Entity, Id, Name, Sha256, ShortText, values_of
from service.db.ledger_tables import Account

KEY_MISSING = "key_missing"  # the failure code of a dataset whose key is missing, for example after a restore


class Dataset(Entity):
    """An uploaded set of labelled images. Its owner declares all facts about it, except its hash and byte count.

    `subjects_declared` is an upper bound on the number of subjects; if it is set, the dataset has subject ids.
    `subjects_recognised`: an id identifies the same subject in all datasets of the project that set this.
    `joined`: some images were already known in another account, which became the dataset's account. `vault_key_id`
    identifies the key of its arrays; PRIVATE, like the hash of the content.
    `upload_attempt` counts uploads and fences their writes, like a job's attempt; another upload may take over after
    `upload_lease_until`.
    `erased_at`: deleted before any training, so that its declaration was erased, too (`service.datasets.deletion`).
    `content_name` and `content_key_id` identify content and key after a withdrawal (`service.datasets.withdrawal`).
    """

    __tablename__ = "datasets"
    __table_args__ = (
        CheckConstraint("(visibility = 'private') = (account_id IS NOT NULL)", "private_has_account"),
        CheckConstraint("height > 0 AND width > 0 AND channels IN (1, 3)", "image_shape"),
        CheckConstraint("records_declared > 0", "records_positive"),
        CheckConstraint(
            "subjects_declared IS NULL OR (subjects_declared > 0 AND subjects_declared <= records_declared)",
            "subjects_within_records",
        ),
        CheckConstraint(
            "state != 'ready' OR (content_sha256 IS NOT NULL AND ready_at IS NOT NULL)", "ready_is_complete"
        ),
        Index(None, "state", "created_at"),
        Index(None, "account_id", "created_at"),
    )

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
    erased_at: Mapped[datetime | None]
    project_id: Mapped[Id] = mapped_column(default=DEFAULT_PROJECT, server_default=DEFAULT_PROJECT)

    account: Mapped[Account | None] = relationship(lazy="raise_on_sql", viewonly=True)

    @property
    def content(self) -> str:
        """The name of its key and arrays (`service.datasets.vault`): the dataset's id until a withdrawal changes it."""
        return self.content_name or self.id

    @property
    def key_id(self) -> str | None:
        """The id of the content's key; None before the upload."""
        return self.content_key_id or self.vault_key_id


class WithdrawnSubject(Base):
    """A subject that has withdrawn from an account, identified by its stored number. PRIVATE: never shown.

    The subject's records are removed from uploads to the account. The account need not have had any of them.
    """

    __tablename__ = "withdrawn_subjects"

    account_id: Mapped[Id] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)


class KnownUploads(Base):
    """The number of uploads whose answers revealed known images, by key, project and UTC day.

    `day` is `YYYY-MM-DD`. Counting an upload removes rows that are older than yesterday.
    """

    __tablename__ = "known_uploads"
    __table_args__ = (CheckConstraint("count > 0", "count_positive"),)

    project_id: Mapped[Id] = mapped_column(primary_key=True)
    key_id: Mapped[Id] = mapped_column(primary_key=True)
    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    count: Mapped[int]


class Fingerprint(Base):
    """16 bytes of the HMAC of a decoded image or recognised subject, and the upload that has it. PRIVATE: never shown.

    Look-ups ignore it until the upload is accepted. Fingerprints of private images outlive their dataset, unless no job
    ever read the dataset. Fingerprints of public images are deleted with their dataset.
    """

    __tablename__ = "fingerprints"
    __table_args__ = (CheckConstraint("length(digest) = 16", "digest_length"),)

    digest: Mapped[bytes] = mapped_column(LargeBinary(16), primary_key=True)
    dataset_id: Mapped[Id] = mapped_column(ForeignKey("datasets.id"), primary_key=True, index=True)
    upload_attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
