"""Webhooks notify URLs of stopped trainings, pending decisions and ended jobs. See docs/operate/monitor.md.

`delivering.py` creates webhooks and sends what is due; `sending.py` checks addresses and signs requests. Webhooks never
carry private data, and never reach private addresses unless the operator allows it.
"""
