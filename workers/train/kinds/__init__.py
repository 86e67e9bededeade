"""The worker's part of each kind of job; `service.jobs.kinds` has the other part.

Start with `train`: like every kind, it exports `run(context)`, which runs one attempt. No kind decides whether a job
may run.
"""
