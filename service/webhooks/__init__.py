"""Webhooks: notify URLs of stopped trainings, pending decisions and ended jobs. See docs/operate/monitor.md."""
