"""Build the records that the API and the pages show, from database rows.

Functions take a session in any transaction and write nothing. They never load a job's secret. They compare amounts of a
budget with the log before showing them.
"""
