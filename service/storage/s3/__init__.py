"""S3 storage: `bucket` sends requests, `entries` finds what is stored, `storage` implements the verbs."""
