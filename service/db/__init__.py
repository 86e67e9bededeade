"""Engine, tables and migrations. Importing any of it puts every table into `Base.metadata`."""

from service.db import (
    access_tables,
    audit_tables,
    dataset_tables,
    job_tables,
    ledger_tables,
    project_tables,
    webhook_tables,
)
