"""The worker's part of each kind of job (`service.jobs.kinds`): `run(context)` runs an attempt."""
