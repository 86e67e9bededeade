"""Estimators of a step's gradient, the only information that a training gets from a batch of private records.

Start with `Estimator` in `estimator.py`; each estimator has a file, and `build.py` builds what a plan names.
An estimator never chooses the batch and never charges: both happen before it.
"""
