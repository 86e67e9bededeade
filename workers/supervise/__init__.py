"""The processes that claim jobs, and start and watch one runner for each attempt.

Start with `supervisor`; `dispatch` calls it in the service's own process, `app` in a Celery worker. No module here sees
data or imports torch.
"""
