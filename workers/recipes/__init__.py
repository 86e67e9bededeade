"""The training algorithms: one file per recipe, and the parts that several share.

Start with `interface`, the contract of a recipe, then read one, such as `moments`. A recipe pays through `Run`
before each release. It never imports the database or the queue.
"""
