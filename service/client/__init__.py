"""Python SDK: the same verbs as the HTTP interface and the command line.

with Client("http://127.0.0.1:8420", token) as client:
    job = client.train(dataset_id, recipe="datalens", epsilon=1.0).wait()
    job.release().sample(count=1000, seed=1, format="imagefolder").wait().download("images.zip")
"""

from service.client.client import Client
from service.client.errors import (
    ApiError,
    AuthError,
    BudgetError,
    ConnectionFailed,
    DownloadCorrupt,
    JobFailed,
    NotFoundError,
    ObscuraClientError,
    RequestError,
    WaitTimeout,
)
from service.client.resources import Dataset, Evaluation, Job, Release, Sample, Sweep

__all__ = [
    "ApiError",
    "AuthError",
    "BudgetError",
    "Client",
    "ConnectionFailed",
    "Dataset",
    "DownloadCorrupt",
    "Evaluation",
    "Job",
    "JobFailed",
    "NotFoundError",
    "ObscuraClientError",
    "Release",
    "RequestError",
    "Sample",
    "Sweep",
    "WaitTimeout",
]
