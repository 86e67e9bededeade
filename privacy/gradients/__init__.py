"""Estimators of a step's gradient, the only information that a training gets from a batch of private records.

Start with `Estimator` in `estimator.py`; each estimator has a file, and `build.py` builds the one that a plan names.
An estimator never chooses the batch and never charges: the caller does both first.
"""
