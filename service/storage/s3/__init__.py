"""S3 storage: `bucket` sends requests, `entries` finds stored content, `storage` implements the interface."""
