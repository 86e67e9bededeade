"""Uploads have leases, fingerprints belong to an upload, and public datasets are compared with private ones.

A fingerprint that an account has is given to one of its datasets, whichever: what counts is the account. Public
datasets that are ready have no fingerprints yet; they are marked, and compared at the next start of the service.

Revision: 0004, after 0003.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import create, needed, reference

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

CARRIED = "fingerprints_carried"  # holds the rows while the table is made anew


def upgrade() -> None:
    op.add_column("datasets", sa.Column("upload_attempt", sa.Integer(), nullable=False, server_default=sa.text("0")))
    op.add_column("datasets", sa.Column("upload_lease_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column("datasets", sa.Column("unchecked", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(
        sa.text("UPDATE datasets SET unchecked = :yes WHERE visibility = 'public' AND ready_at IS NOT NULL").bindparams(
            sa.bindparam("yes", True, sa.Boolean())
        )
    )
    homes = "SELECT account_id, min(id) AS dataset_id FROM datasets WHERE ready_at IS NOT NULL GROUP BY account_id"
    op.execute(
        f"CREATE TABLE {CARRIED} AS SELECT digest, dataset_id FROM fingerprints "
        f"JOIN ({homes}) AS homes ON homes.account_id = fingerprints.account_id"
    )
    _require_all_carried()
    op.drop_table("fingerprints")
    create(
        "fingerprints",
        *needed(sa.LargeBinary(16), "digest"),
        reference("dataset_id", "datasets", index=True),
        sa.Column("upload_attempt", sa.Integer(), autoincrement=False, nullable=False),
        key=("digest", "dataset_id", "upload_attempt"),
        digest_length="length(digest) = 16",
    )
    op.execute(f"INSERT INTO fingerprints SELECT digest, dataset_id, 0 FROM {CARRIED}")
    op.drop_table(CARRIED)


def downgrade() -> None:
    op.execute(
        f"CREATE TABLE {CARRIED} AS SELECT DISTINCT digest, account_id FROM fingerprints "
        "JOIN datasets ON datasets.id = dataset_id AND datasets.upload_attempt = fingerprints.upload_attempt "
        "WHERE account_id IS NOT NULL AND ready_at IS NOT NULL"
    )
    op.drop_table("fingerprints")
    create(
        "fingerprints",
        *needed(sa.LargeBinary(16), "digest"),
        reference("account_id", "accounts"),
        key=("digest", "account_id"),
        digest_length="length(digest) = 16",
    )
    op.execute(f"INSERT INTO fingerprints SELECT digest, account_id FROM {CARRIED}")
    op.drop_table(CARRIED)
    for column in ("unchecked", "upload_lease_until", "upload_attempt"):
        op.drop_column("datasets", column)


def _require_all_carried() -> None:
    """Stop where a fingerprint would be lost: its image would pass for new."""
    connection = op.get_bind()
    before, after = (connection.scalar(sa.text(f"SELECT count(*) FROM {name}")) for name in ("fingerprints", CARRIED))
    if before != after:
        raise RuntimeError(
            f"{before - after} fingerprints are of accounts without any dataset that was ever ready. They say that "
            "images are known, so they are not dropped: find out where those datasets went, then migrate again."
        )
