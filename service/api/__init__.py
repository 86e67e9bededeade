"""The HTTP API below `/v1`: authentication, limits, problem documents, the audit log, and bounded pages.

`routes.routers()` returns all routes, and `service.main` mounts them. The API never trains, and never opens the images
of a private dataset.
"""
