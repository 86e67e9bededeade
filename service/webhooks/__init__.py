"""Webhooks: addresses that are told of stops, of decisions that wait, and of jobs that ended. See docs/webhooks.md."""
