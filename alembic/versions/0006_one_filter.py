"""Accounts have a rate instead of a filter that was chosen: how much d they give with each unit of mu^2.

An account with the gdp filter is one with rate 0: its entries, its capacity and the prices of its jobs are the same.
One with the rdp filter has no counterpart. A database that holds such an account is left as it is.

Revision: 0006, after 0005.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from service.db.revisions import write_schema

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

FILTER_CHECK = "CONSTRAINT ck_accounts_filter CHECK (filter IN ('gdp', 'rdp'))"
ADJACENCY_CHECK = "CONSTRAINT ck_accounts_adjacency CHECK (adjacency IN ('add_remove'))"  # behind which it stood


def upgrade() -> None:
    others = op.get_bind().execute(sa.text("SELECT count(*) FROM accounts WHERE filter != 'gdp'")).scalar()
    if others:
        raise RuntimeError(
            f"{others} accounts have the rdp filter, whose prices this version cannot check. Nothing was changed: keep "
            "the version that opened them for them, and begin a new database for new accounts. What a population has "
            "spent there counts: open its new account for what is left."
        )
    for name in ("rate", "base"):
        op.add_column("accounts", sa.Column(name, sa.Double(), nullable=False, server_default="0"))
    op.execute("UPDATE accounts SET rate = 0, base = 0")  # SQLite would read it from the default, which goes
    if op.get_bind().dialect.name == "sqlite":
        write_schema("accounts", f", \n\t{FILTER_CHECK}", "")
        write_schema("accounts", " DEFAULT '0'", "")
    else:
        for name in ("rate", "base"):
            op.alter_column("accounts", name, server_default=None)
        op.drop_constraint(op.f("ck_accounts_filter"), "accounts", type_="check")
    op.execute("ALTER TABLE accounts DROP COLUMN filter")
    op.execute("ALTER TABLE accounts DROP COLUMN filter_order")


def downgrade() -> None:
    others = op.get_bind().execute(sa.text("SELECT count(*) FROM accounts WHERE rate != 0")).scalar()
    if others:
        raise RuntimeError(f"{others} accounts were opened since and have a rate. Nothing was changed.")
    op.add_column("accounts", sa.Column("filter", sa.String(length=32), nullable=False, server_default="gdp"))
    op.add_column("accounts", sa.Column("filter_order", sa.Double(), nullable=True))
    op.execute("UPDATE accounts SET filter = 'gdp'")
    op.execute("ALTER TABLE accounts DROP COLUMN rate")
    op.execute("ALTER TABLE accounts DROP COLUMN base")
    if op.get_bind().dialect.name == "sqlite":
        write_schema("accounts", " DEFAULT 'gdp'", "")
        write_schema("accounts", ADJACENCY_CHECK, f"{ADJACENCY_CHECK}, \n\t{FILTER_CHECK}")
    else:
        op.alter_column("accounts", "filter", server_default=None)
        op.create_check_constraint(op.f("ck_accounts_filter"), "accounts", "filter IN ('gdp', 'rdp')")
