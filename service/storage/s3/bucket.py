"""One bucket of an S3 server: asked with a patience that ends, and with errors that say what to do.

Address, region and credentials come from the environment and the files that all AWS tools read; none of them is ever
logged, or quoted in an error.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
)
from botocore.exceptions import (
    ConnectionError as NoConnection,
)

from service.dependencies import in_web_request, progressed
from service.errors import InvalidInput
from service.storage.interface import StorageUnavailable

PATIENCE_SECONDS = 60.0  # from the first try of a request to the last one
CONNECT_SECONDS, READ_SECONDS = 5.0, 20.0  # of one try
# The same of a web request, whose client waits. The times are between two bytes: what makes progress may take longer.
WEB_PATIENCE_SECONDS, WEB_CONNECT_SECONDS, WEB_READ_SECONDS = 3.0, 2.0, 4.0
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.2, 8.0  # between two tries: doubled each time, less a random part
CONNECTIONS = 40  # as many as the server has threads
_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[A-Za-z0-9][A-Za-z0-9._-]*)*)/?")
_MISSING = {"NoSuchKey", "404"}
_PASSING = {"SlowDown", "OperationAborted", "RequestTimeout", "Throttling"}
_PASSING |= {"IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"}  # something went wrong on the way
# What is said of errors that time does not heal, by the server's code.
_TOLD = {
    "NoSuchBucket": ("bucket", "The bucket {bucket} is not there: make it, or name another one in OBSCURA_STORAGE"),
    "InvalidBucketName": ("bucket", "{bucket} cannot be a bucket's name: name another one in OBSCURA_STORAGE"),
    "InvalidAccessKeyId": ("key", "The storage does not know the access key that this machine has"),
    "SignatureDoesNotMatch": (
        "key",
        "The storage does not accept the access key that this machine has: key and secret do not belong together, or "
        "it does not know them. They are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or stand in ~/.aws/credentials",
    ),
    "ExpiredToken": ("key", "The credentials of this machine have run out"),
    "InvalidToken": ("key", "The session token of this machine's credentials is not valid"),
    "AccessDenied": (
        "rights",
        "The credentials of this machine have no right to do this in the bucket {bucket}: they need s3:ListBucket on "
        "it, and s3:GetObject, s3:PutObject and s3:DeleteObject on what is in it",
    ),
    "RequestTimeTooSkewed": ("clock", "The clocks of this machine and of the storage are too far apart: set this one"),
    "PermanentRedirect": ("region", "The bucket {bucket} is in another region: set AWS_DEFAULT_REGION"),
    "AuthorizationHeaderMalformed": ("region", "The storage is in another region: set AWS_DEFAULT_REGION"),
}
_SAME = {"403": "AccessDenied", "AllAccessDisabled": "AccessDenied", "301": "PermanentRedirect"}
_SAME |= {"400": "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError": "AuthorizationHeaderMalformed"}
_SAME |= {"IllegalLocationConstraintException": "PermanentRedirect", "TokenRefreshRequired": "ExpiredToken"}

for _noisy in ("botocore", "urllib3"):  # on DEBUG they log whole requests, with what signs them
    logging.getLogger(_noisy).setLevel(logging.WARNING)

T = TypeVar("T")
_making = threading.Lock()


@dataclass(frozen=True)
class Listed:
    """An object, or with `is_folder` what several names have in common; and how long ago it was written."""

    name: str
    seconds: float = 0.0
    is_folder: bool = False


class Damaged(Exception):
    """What was read is not what was put there."""


class Bucket:
    """The objects of one bucket whose names begin with a prefix.

    Args:
        url: `s3://BUCKET` or `s3://BUCKET/PREFIX`.

    Raises:
        InvalidInput: it has another form.
    """

    def __init__(self, url: str) -> None:
        form = _URL.fullmatch(url)
        if form is None:
            raise InvalidInput(
                "OBSCURA_STORAGE is like s3://bucket or s3://bucket/prefix; a bucket's name has 3 to 63 lower-case "
                "letters, digits, dots and hyphens. Credentials do not belong there."
            )
        self._bucket, self._prefix = form[1], f"{form[2][1:]}/" if form[2] else ""

    def put(self, name: str, content: bytes) -> None:
        """Write an object, whole or not at all; one of that name is replaced."""
        self._patiently(lambda client: client.put_object(**self._at(name), Body=content))

    def get(self, name: str) -> bytes | None:
        """Return a small object; None where there is none."""
        return self._unless_missing(lambda client: _read(client.get_object(**self._at(name))["Body"]))

    def get_checked(self, name: str, size: int, sha256: str) -> bytes | None:
        """Return an object of a known size and digest; None where there is none.

        Raises:
            Damaged: it is another one.
        """
        content = self.get(name)
        if content is not None and (len(content) != size or sha256_of(content) != sha256):
            raise Damaged
        return content

    def is_there(self, name: str) -> bool:
        """Tell whether there is an object of that name."""
        return self._unless_missing(lambda client: client.head_object(**self._at(name))) is not None

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
        self._unless_missing(lambda client: client.delete_object(**self._at(name)))

    def list(self, prefix: str, *, deep: bool = True) -> Iterator[Listed]:
        """Yield the objects whose names begin with a prefix; not `deep`: folders in place of what is in them."""
        given: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        given |= {} if deep else {"Delimiter": "/"}
        while True:
            page = self._patiently(lambda client: client.list_objects_v2(**given))
            now = _date_of(page)
            for each in page.get("Contents", ()):
                yield Listed(each["Key"][len(self._prefix) :], (now - each["LastModified"]).total_seconds())
            for each in page.get("CommonPrefixes", ()):
                yield Listed(each["Prefix"][len(self._prefix) :], is_folder=True)
            if not page.get("IsTruncated"):
                return
            given["ContinuationToken"] = page["NextContinuationToken"]

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def _unless_missing(self, act: Callable[[Any], T]) -> T | None:
        try:
            return self._patiently(act)
        except _Refused as refusal:
            if refusal.answer in _MISSING:
                return None
            raise

    def _patiently(self, act: Callable[[Any], T]) -> T:
        """Ask until there is an answer, for as long as patience lasts.

        Raises:
            StorageUnavailable: the storage did not answer, or refuses.
        """
        web = in_web_request()
        until, pause = time.monotonic() + (WEB_PATIENCE_SECONDS if web else PATIENCE_SECONDS), PAUSE_SECONDS
        while True:
            try:
                with _making if web else nullcontext():  # many requests may need the first one at once
                    client = _client(os.getpid(), web)
                done = act(client)
                progressed("storage")
                return done
            except (BotoCoreError, ClientError) as error:
                failure = self._explained(error)
            if isinstance(failure, _Refused) or time.monotonic() + pause > until:
                raise failure from None
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def _explained(self, error: BotoCoreError | ClientError) -> StorageUnavailable:
        """Return what is told of an error: the sentences name the bucket, and nothing else that the error holds."""
        if isinstance(error, ClientError):
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if code in _PASSING or status >= 500 or status == 429:
                return _away(f"answers {code or status}")
            why, sentence = _TOLD.get(_SAME.get(code, code), ("refused", "The storage refuses the request ({code})"))
            return _Refused(code, why, f"{sentence.format(bucket=self._bucket, code=code)}.")
        if isinstance(error, SSLError):
            return _Refused(
                "", "tls", "The storage's certificate is not trusted here: AWS_CA_BUNDLE names the file of its issuer."
            )
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return _Refused(
                "",
                "credentials",
                "This machine has no credentials for the storage: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                "write ~/.aws/credentials.",
            )
        if isinstance(error, NoConnection | HTTPClientError | IncompleteReadError | CredentialRetrievalError):
            return _away("does not answer")
        return _Refused("", "refused", f"The storage cannot be asked ({type(error).__name__}).")


class _Refused(StorageUnavailable):
    """The storage has answered, and asking again would not help."""

    def __init__(self, code: str, why: str, message: str) -> None:
        super().__init__(message, why=why)
        self.answer = code


def _away(what: str) -> StorageUnavailable:
    return StorageUnavailable(f"The storage {what}. Nothing was lost; try again when it is back.", why="away")


def sha256_of(content: bytes) -> str:
    """Return the SHA-256 of content, as hex."""
    return hashlib.sha256(content).hexdigest()


def _read(body: Any) -> bytes:
    with body:
        content: bytes = body.read()
    return content


def _date_of(page: Any) -> datetime:
    """Return the server's own time, for what it has dated."""
    said = page["ResponseMetadata"]["HTTPHeaders"].get("date")
    return parsedate_to_datetime(said) if said else datetime.now(UTC)


@functools.lru_cache(maxsize=4)
def _client(process: int, web: bool) -> Any:  # noqa: ARG001 - a forked process must not share its parent's connections
    session = botocore.session.get_session()
    region = session.get_config_variable("region") or "us-east-1"
    config = Config(
        connect_timeout=WEB_CONNECT_SECONDS if web else CONNECT_SECONDS,
        read_timeout=WEB_READ_SECONDS if web else READ_SECONDS,
        max_pool_connections=CONNECTIONS,
        retries={"total_max_attempts": 1},
        # Newer checksums are unknown to many servers; the signature covers the content's SHA-256 all the same.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": True},
    )
    try:
        client = session.create_client("s3", region_name=region, config=config)
    except ValueError:
        raise InvalidInput("AWS_ENDPOINT_URL is no address; it is like https://storage.example.org.") from None
    if ".amazonaws." not in client.meta.endpoint_url:  # servers of one's own have no names for buckets
        config = config.merge(Config(s3={"payload_signing_enabled": True, "addressing_style": "path"}))
        client = session.create_client("s3", region_name=region, config=config)
    return client
