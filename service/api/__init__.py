"""The HTTP API: routes under `/v1`, problem documents, bounded pages, scoped keys.

Exports `routes.routers()`; `service.main` mounts them. The API never trains, and never opens a private dataset.
"""
