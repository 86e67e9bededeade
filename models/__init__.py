"""Networks, the public images that they train on, and the files of a release.

Start with `models.released`, which saves and loads every generator. No module here charges an account,
or uses the database or the queue.
"""
