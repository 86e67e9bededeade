"""The worker's part of each kind of job (`service.jobs.kinds`): `run(context)` does the work of an attempt."""
