"""The processes that run jobs: trainings, samples, evaluations and previews.

Start with `workers.train.runner`, which runs one attempt. No module here accepts a job or decides what it costs.
"""
