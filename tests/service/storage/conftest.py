"""A real S3 server for the tests that need one."""

import os
import secrets
from collections.abc import Iterator

import pytest

from scripts.with_services import S3_VARIABLE

INSTALL = "apt-get install swift-proxy swift-account swift-container swift-object"


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of OpenStack Swift: the one that was started for all tests, or else of this process's own."""
    pytest.importorskip("botocore", reason="needs botocore: pip install '.[s3]'")
    from scripts.swift_server import SwiftServer, wait_for_bucket

    if S3_VARIABLE in os.environ:
        wait_for_bucket(os.environ[S3_VARIABLE])
        yield os.environ[S3_VARIABLE]
        return
    try:
        server = SwiftServer(tmp_path_factory.mktemp("swift"))
    except FileNotFoundError as error:
        pytest.skip(f"{error}: {INSTALL}")
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def bucket_url(s3_url, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in its bucket, with what lets this process in."""
    from scripts.swift_server import BUCKET, environment_of

    for name, value in environment_of(s3_url).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{secrets.token_hex(4)}"
