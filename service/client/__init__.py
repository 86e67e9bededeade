"""Python SDK: the same verbs as the HTTP interface and the command line.

with Client("http://127.0.0.1:8420", token) as client:
    dataset = client.datasets.push("images/", account_id=account_id, size=64, background="white", say=print)
    job = client.train(dataset.id, recipe="datalens", epsilon=1.0).wait()
    job.release().sample(count=1000, seed=1, format="imagefolder").wait().download("images.zip")
"""

from service.client.client import Client
from service.client.datasets import Datasets
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
from service.client.preparing import BrokenPictures, ChoiceNeeded, PackingError
from service.client.resources import Dataset, Evaluation, Job, Preview, Release, Sample, Sweep

__all__ = [
    "ApiError",
    "AuthError",
    "BrokenPictures",
    "BudgetError",
    "ChoiceNeeded",
    "Client",
    "ConnectionFailed",
    "Dataset",
    "Datasets",
    "DownloadCorrupt",
    "Evaluation",
    "Job",
    "JobFailed",
    "NotFoundError",
    "ObscuraClientError",
    "PackingError",
    "Preview",
    "Release",
    "RequestError",
    "Sample",
    "Sweep",
    "WaitTimeout",
]
