"""What readers see: rows as the records of the wire. The JSON API answers with them, and the pages show them.

Functions take a session in any transaction and write nothing. A job's secret is never loaded.
"""
