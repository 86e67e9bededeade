"""Python SDK: the same operations as the HTTP interface and the command line.

It exports `Client`, `AsyncClient`, and their resources and errors. It never imports the server, and it sends images
only in the uploads that you request.

with Client("http://127.0.0.1:8420", token) as client:
    dataset = client.datasets.push("images/", account_id=account_id, at_most=2000, size=64, say=print)
    job = client.jobs.create(dataset.id, epsilon=1).wait()
    job.release().sample(1000).to_imagefolder("synthetic")
"""

# Each file exports the names in its __all__.
from obscura import errors
from obscura.client import accounts, async_resources, client, contents, local_service, resources
from obscura.client.accounts import *
from obscura.client.async_resources import *
from obscura.client.client import *
from obscura.client.contents import *
from obscura.client.local_service import *
from obscura.client.resources import *
from obscura.errors import *
from obscura.extras import MissingExtra
from obscura.preparing import Arrays

__all__ = ["Arrays", "MissingExtra"]
__all__ += accounts.__all__
__all__ += async_resources.__all__
__all__ += client.__all__
__all__ += contents.__all__
__all__ += errors.__all__
__all__ += local_service.__all__
__all__ += resources.__all__
