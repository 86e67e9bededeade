"""S3 storage, for machines that share nothing but a bucket.

Start with `storage`, which implements the interface; `entries` finds stored content, and `bucket` sends requests. This
package never needs conditional writes, and never logs credentials.
"""
