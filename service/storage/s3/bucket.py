"""Requests to one bucket of an S3 server.

Endpoint, region and credentials come from the environment and the files that AWS tools read. They are never logged
or quoted in errors.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import botocore.session
from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError

from service.dependencies import in_web_request, progressed
from service.errors import InvalidInput
from service.storage.interface import StorageUnavailable


@dataclass(frozen=True)
class Patience:
    """Limits on the retries and the duration of one request."""

    seconds: float  # no try begins after this time
    tries: int  # at most, with the backoff of botocore's retry mode `standard`
    connect_seconds: float  # timeout of one try
    read_seconds: float  # timeout between two bytes of a response

    @property
    def request_seconds(self) -> float:
        """The time after which a request without a response has failed."""
        return self.seconds + _PAUSE_SECONDS_MAX + self.connect_seconds + self.read_seconds

    @property
    def claim_seconds(self) -> float:
        """The time after which the claim of a dead process expires."""
        return 2 * self.request_seconds


_PAUSE_SECONDS_MAX = 20.0  # between two tries, botocore's value
PATIENCE = Patience(seconds=60, tries=15, connect_seconds=5, read_seconds=20)
WEB_PATIENCE = Patience(seconds=3, tries=3, connect_seconds=2, read_seconds=4)
CONNECTIONS = 40  # as many as the server has threads
_BODY_TRIES = 3  # botocore does not retry a request whose response is truncated
_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[A-Za-z0-9][A-Za-z0-9._-]*)*)/?")
_MISSING = {"NoSuchKey", "404"}
_NO_ANSWER = (
    exceptions.ConnectionError,
    exceptions.HTTPClientError,
    exceptions.CredentialRetrievalError,
    IncompleteReadError,
)
# Temporary errors, although the status is below 500.
_TEMPORARY = {"SlowDown", "OperationAborted", "RequestTimeout", "Throttling"}
_TEMPORARY |= {"IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"}
# Errors that an operator must fix, by the server's code or our own.
_EXPLANATIONS = {
    "tls": (
        "tls",
        "This machine does not trust the storage's certificate. Set AWS_CA_BUNDLE to its issuer's certificate file",
    ),
    "credentials": (
        "credentials",
        "This machine has no credentials for the storage. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write "
        "~/.aws/credentials",
    ),
    "NoSuchBucket": ("bucket", "The bucket {bucket} does not exist. Create it, or change OBSCURA_STORAGE"),
    "InvalidBucketName": ("bucket", "{bucket} is not a valid bucket name. Change OBSCURA_STORAGE"),
    "InvalidAccessKeyId": ("key", "The storage does not know this machine's access key. Check AWS_ACCESS_KEY_ID"),
    "SignatureDoesNotMatch": (
        "key",
        "The storage does not accept this machine's access key: it is unknown, or the secret does not match. Check "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials",
    ),
    "ExpiredToken": ("key", "This machine's credentials for the storage have expired. Renew them"),
    "InvalidToken": ("key", "The session token of this machine's credentials is not valid. Check AWS_SESSION_TOKEN"),
    "AccessDenied": (
        "rights",
        "The credentials lack permissions: they need s3:ListBucket on the bucket {bucket}, and s3:GetObject, "
        "s3:PutObject and s3:DeleteObject on its objects",
    ),
    "RequestTimeTooSkewed": ("clock", "The clocks of this machine and of the storage differ too much. Set the clock"),
    "PermanentRedirect": ("region", "The bucket {bucket} is in another region. Set AWS_DEFAULT_REGION"),
    "AuthorizationHeaderMalformed": ("region", "The storage is in another region. Set AWS_DEFAULT_REGION"),
}
_SYNONYMS = {"403": "AccessDenied", "AllAccessDisabled": "AccessDenied", "301": "PermanentRedirect"}
_SYNONYMS |= dict.fromkeys(("400", "AuthorizationQueryParametersError"), "AuthorizationHeaderMalformed")
_SYNONYMS |= {"IllegalLocationConstraintException": "PermanentRedirect", "TokenRefreshRequired": "ExpiredToken"}

for _noisy in ("botocore", "urllib3"):  # at DEBUG they log whole requests, with signatures
    logging.getLogger(_noisy).setLevel(logging.WARNING)


@dataclass(frozen=True)
class Listed:
    """An object and its age, or a common prefix of several objects."""

    name: str
    seconds: float = 0.0


class Bucket:
    """The objects of one bucket whose names begin with a prefix.

    Every method raises StorageUnavailable if the storage does not answer in time, or rejects the request.

    Args:
        url: `s3://BUCKET` or `s3://BUCKET/PREFIX`; anything else raises InvalidInput.
        patience: bounds of requests outside web requests.
    """

    def __init__(self, url: str, patience: Patience = PATIENCE) -> None:
        form = _URL.fullmatch(url)
        if form is None:
            raise InvalidInput(
                "OBSCURA_STORAGE must look like s3://bucket or s3://bucket/prefix. A bucket name has 3 to 63 "
                "lower-case letters, digits, dots and hyphens. The address must not contain credentials."
            )
        self.patience = patience
        self._bucket, self._prefix = form[1], f"{form[2][1:]}/" if form[2] else ""
        self._clients: dict[tuple[int, Patience], Any] = {}
        self._creating = threading.Lock()

    def put(self, name: str, content: bytes) -> None:
        """Write an object atomically; replace an existing one."""
        self._ask(lambda client: client.put_object(**self._at(name), Body=content))

    def get(self, name: str) -> bytes | None:
        """Return the content of a small object; None if there is no such object."""

        def read(client: Any) -> bytes:
            tries_left = _BODY_TRIES
            while True:
                body = client.get_object(**self._at(name))["Body"]
                tries_left -= 1
                try:
                    with body:
                        content: bytes = body.read()
                    return content
                except (IncompleteReadError, exceptions.ResponseStreamingError, exceptions.ReadTimeoutError):
                    if not tries_left:
                        raise

        content: bytes | None = self._ask(read, missing_ok=True)
        return content

    def is_there(self, name: str) -> bool:
        return self._ask(lambda client: client.head_object(**self._at(name)), missing_ok=True) is not None

    def delete(self, name: str) -> None:
        self._ask(lambda client: client.delete_object(**self._at(name)), missing_ok=True)

    def list(self, prefix: str, *, deep: bool = True) -> Iterator[Listed]:
        """Yield the objects whose names start with a prefix. Unless `deep`, yield folders instead of their objects."""
        query: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        query |= {} if deep else {"Delimiter": "/"}
        while True:
            page = self._ask(lambda client: client.list_objects_v2(**query))
            date = page["ResponseMetadata"]["HTTPHeaders"].get("date")  # ages follow the server's clock
            now = parsedate_to_datetime(date) if date else datetime.now(UTC)
            for each in page.get("Contents", ()):
                yield Listed(each["Key"][len(self._prefix) :], (now - each["LastModified"]).total_seconds())
            for each in page.get("CommonPrefixes", ()):
                yield Listed(each["Prefix"][len(self._prefix) :])
            if not page.get("IsTruncated"):
                return
            query["ContinuationToken"] = page["NextContinuationToken"]

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def _ask(self, request: Callable[[Any], Any], *, missing_ok: bool = False) -> Any:
        """Return the response to a request; with `missing_ok`, None if there is no such object."""
        patience = WEB_PATIENCE if in_web_request() else self.patience
        key = os.getpid(), patience  # a forked process must not share its parent's connections
        with self._creating:
            if key not in self._clients:
                self._clients[key] = _new_client(patience)
            client = self._clients[key]
        try:
            answer = request(client)
        except (BotoCoreError, ClientError) as error:
            code = str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""
            explained = self._explained(error, code)
            if missing_ok and code in _MISSING and not explained.dependency_failed:
                return None
            raise explained from None
        progressed("storage")
        return answer

    def _explained(self, error: BotoCoreError | ClientError, code: str) -> StorageUnavailable:
        """Return an error that names only the bucket: the original may contain credentials."""
        if isinstance(error, ClientError):
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if code in _TEMPORARY or status >= 500 or status == 429:
                return _away(f"answers {code or status}")
            refused = "refused", "The storage refuses the request ({code})"
            why, sentence = _EXPLANATIONS.get(_SYNONYMS.get(code, code), refused)
            sentence = sentence.format(bucket=self._bucket, code=code)
        elif isinstance(error, exceptions.SSLError):
            why, sentence = _EXPLANATIONS["tls"]
        elif isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
            why, sentence = _EXPLANATIONS["credentials"]
        elif isinstance(error, _NO_ANSWER):
            return _away("does not answer")
        else:
            why, sentence = "refused", f"The storage cannot be used ({type(error).__name__})"
        return StorageUnavailable(f"{sentence}.", why=why)


def _away(what: str) -> StorageUnavailable:
    return StorageUnavailable(f"The storage {what}. Nothing was lost; try again when the storage is back.", why="away")


def _new_client(patience: Patience) -> Any:
    session = botocore.session.get_session()
    region = session.get_config_variable("region") or "us-east-1"
    config = Config(
        connect_timeout=patience.connect_seconds,
        read_timeout=patience.read_seconds,
        max_pool_connections=CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": patience.tries},
        # Many servers do not support newer checksums. The signature covers the content's SHA-256 anyway.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": True},
    )
    try:
        client = session.create_client("s3", region_name=region, config=config)
    except ValueError:
        raise InvalidInput("AWS_ENDPOINT_URL must be an address like https://storage.example.org.") from None
    if ".amazonaws." not in client.meta.endpoint_url:  # other servers do not support bucket host names
        config = config.merge(Config(s3={"payload_signing_enabled": True, "addressing_style": "path"}))
        client = session.create_client("s3", region_name=region, config=config)

    def give_up_late(request: Any, **_: Any) -> None:  # botocore limits the number of tries, not their time
        now = time.monotonic()
        if now > request.context.setdefault("obscura_deadline", now + patience.seconds):
            raise _away("does not answer")

    client.meta.events.register("request-created.s3", give_up_late)
    return client
