"""Storage in a bucket of an S3 server.

`storage` has the verbs, `bucket` asks the server, `entries` says what stands there, `lookup` finds it, `claims` decides
who may write first, and `copies` is what this machine keeps meanwhile.
"""
