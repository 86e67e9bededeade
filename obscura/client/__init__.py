"""Python SDK: the same verbs as the HTTP interface and the command line.

with Client("http://127.0.0.1:8420", token) as client:
    dataset = client.datasets.push("images/", account_id=account_id, at_most=2000, size=64, say=print)
    job = client.start_training(dataset.id, recipe="moments", epsilon=1.0).wait()
    job.release().sample(1000).to_imagefolder("synthetic")
"""

from obscura.client.async_resources import (
    AsyncAccount,
    AsyncDataset,
    AsyncEvaluation,
    AsyncJob,
    AsyncPreview,
    AsyncRelease,
    AsyncSample,
    AsyncSweep,
)
from obscura.client.client import AsyncClient, AsyncDatasets, Client
from obscura.client.connections import connect, connect_async, local, local_async
from obscura.client.contents import Images, PlaceTaken
from obscura.client.datasets import Datasets
from obscura.client.holdings import Account, Dataset
from obscura.client.local_service import LocalClient, ServiceFailed
from obscura.client.resources import Evaluation, Job, Preview, Release, Sample, Sweep
from obscura.errors import (
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
from obscura.extras import MissingExtra
from obscura.preparing import Arrays, BrokenPictures, ChoiceNeeded, MoreThanStated, PackingError

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
    "LocalClient",
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
    "ServiceFailed",
    "Sweep",
    "WaitTimeout",
    "connect",
    "connect_async",
    "local",
    "local_async",
]
