"""Python SDK: the same verbs as the HTTP interface and the command line.

with Client("http://127.0.0.1:8420", token) as client:
    dataset = client.datasets.push("images/", account_id=account_id, at_most=2000, size=64, say=print)
    job = client.start_training(dataset.id, recipe="datalens", epsilon=1.0).wait()
    job.release().sample(1000).to_imagefolder("synthetic")
"""

from service.client.async_resources import (
    AsyncAccount,
    AsyncDataset,
    AsyncEvaluation,
    AsyncJob,
    AsyncPreview,
    AsyncRelease,
    AsyncSample,
    AsyncSweep,
)
from service.client.asynchronous import AsyncClient, AsyncDatasets
from service.client.client import Client
from service.client.contents import Images, PlaceTaken
from service.client.datasets import Datasets
from service.client.errors import (
    ApiError,
    AuthError,
    BudgetError,
    ConnectionFailed,
    DownloadCorrupt,
    JobFailed,
    NoSuchName,
    NotFoundError,
    ObscuraClientError,
    RequestError,
    WaitTimeout,
)
from service.client.extras import MissingExtra
from service.client.holdings import Account, Dataset
from service.client.preparing import Arrays, BrokenPictures, ChoiceNeeded, MoreThanStated, PackingError
from service.client.resources import Evaluation, Job, Preview, Release, Sample, Sweep

__all__ = [
    "Account",
    "ApiError",
    "Arrays",
    "AsyncAccount",
    "AsyncClient",
    "AsyncDataset",
    "AsyncDatasets",
    "AsyncEvaluation",
    "AsyncJob",
    "AsyncPreview",
    "AsyncRelease",
    "AsyncSample",
    "AsyncSweep",
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
    "Images",
    "Job",
    "JobFailed",
    "MissingExtra",
    "MoreThanStated",
    "NoSuchName",
    "NotFoundError",
    "ObscuraClientError",
    "PackingError",
    "PlaceTaken",
    "Preview",
    "Release",
    "RequestError",
    "Sample",
    "Sweep",
    "WaitTimeout",
]
