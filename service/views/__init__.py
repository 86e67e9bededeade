"""Records of the wire, made from rows, for the API and the pages.

Functions take a session in any transaction and write nothing. They never load a job's secret, and show an amount of a
budget only after comparing it with the log.
"""
