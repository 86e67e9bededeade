"""Webhooks: they notify URLs of stopped trainings, waiting decisions and ended jobs. See docs/operate/monitor.md."""
