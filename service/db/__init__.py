"""The database: `session` opens it, `*_tables` map its rows, and `schema` runs the migrations.

Importing this package puts every table into `Base.metadata`. Rules about rows live in the packages that own them.
"""

from service.db import access_tables, dataset_tables, job_tables, ledger_tables
