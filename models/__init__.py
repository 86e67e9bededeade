"""Networks, the public images that they train on, and the files of a release.

Start with `models.released`, which saves and loads every generator. No module here pays for a release, or knows a
database or a queue.
"""
