"""The HTTP interface: `/v1`, problem documents, bounded pages, scoped keys."""
