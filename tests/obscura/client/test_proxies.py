"""Proxies and certificates of the environment: never used for a service on this machine, and never a traceback."""

import logging
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import obscura
from obscura.client import Client, ConnectionSettingsError, ObscuraClientError, transport
from tests.obscura.client.canned import command, empty_service

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def environment(no_backoff: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    transport.trusted.cache_clear()
    yield
    transport.trusted.cache_clear()


service, proxy = pytest.fixture(empty_service, name="service"), pytest.fixture(empty_service, name="proxy")


def by_client(url: str) -> None:
    with obscura.connect(url, "key") as client:
        list(client.accounts.list())


def by_command(url: str) -> None:
    ran = command(url, "accounts", "list")
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    if ran.exit_code:
        raise ConnectionSettingsError(ran.stderr)


WAYS = [by_client, by_command]


@pytest.mark.parametrize("ask", WAYS)
@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_service_on_this_machine_is_asked_directly(service, proxy, monkeypatch, ask, variable, host):
    monkeypatch.setenv(variable, proxy.url)
    ask(service.url.replace("127.0.0.1", host))
    assert proxy.requests == []
    assert service.requests[0][1]["Authorization"] == "Bearer key"


@pytest.mark.parametrize("ask", WAYS)
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTP_PROXY", "foo://bar"),
        ("HTTP_PROXY", "http://proxy.lan:port"),
        ("HTTP_PROXY", "http://[::1"),
        ("HTTP_PROXY", "http://"),
        ("ALL_PROXY", "socks4://127.0.0.1:9"),
        ("SSL_CERT_FILE", "/nonexistent.pem"),
        ("SSL_CERT_FILE", "/"),
        ("SSL_CERT_FILE", __file__),
        ("SSL_CERT_DIR", "/nonexistent"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_for_a_remote_service_and_ignored_for_a_local_one(
    service, monkeypatch, ask, variable, value
):
    assert transport.is_here("http://127.1.2.3:1")
    monkeypatch.setenv(variable, value)
    ask(service.url)
    scheme = "https" if variable.startswith("SSL") else "http"
    with pytest.raises(ConnectionSettingsError, match=variable):
        ask(f"{scheme}://obscura.invalid")


@pytest.mark.parametrize("ask", WAYS)
def test_socks_without_its_package_names_the_package(monkeypatch, ask):
    monkeypatch.setitem(__import__("sys").modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(ConnectionSettingsError, match=r"httpx\[socks\]"):
        ask("http://obscura.invalid")


def test_a_remote_service_is_asked_through_the_proxy_which_is_named_without_its_password(proxy, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "obscura")
    monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("http://", "http://user:secret@"))
    ran = command("http://obscura.invalid", "accounts", "list", "--json")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.split() == ["[]"]
    assert f"through the proxy {proxy.url}" in " ".join(ran.stderr.split())
    assert "secret" not in ran.output + caplog.text
    assert f"through the proxy {proxy.url}" in caplog.text
    assert proxy.requests[0][0].startswith("GET http://obscura.invalid/v1/accounts")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with pytest.raises(ObscuraClientError, match=r"through the proxy http://127\.0\.0\.1:1"):
        by_client("http://obscura.invalid")


@pytest.mark.parametrize(
    ("exceptions", "bypassed"),
    [
        ("localhost,fd56:9122:70e4:1::/64", False),
        ("10.0.0.0/8", True),
        ("10.9.8.7", True),
        ("*", True),
        ("192.168.0.0/16, 10.9.0.0/16", True),
        ("10.9.8.7/99,[::1", False),
        ("", False),
    ],
)
def test_no_proxy_takes_addresses_and_networks(monkeypatch, exceptions, bypassed):
    monkeypatch.setenv("HTTP_PROXY", "proxy.lan:3128")
    monkeypatch.setenv("NO_PROXY", exceptions)
    with Client("http://10.9.8.7:8420", "key") as client:
        assert client.transport.proxy == (None if bypassed else "http://proxy.lan:3128")


@pytest.mark.parametrize("ask", WAYS)
@pytest.mark.parametrize(
    "url", ["obscura.example.org", "ftp://obscura.invalid", "http://[::1", "http://", "", "http://a:b"]
)
def test_an_address_that_is_none_is_named(ask, url):
    if url or ask is not by_command:
        with pytest.raises(ConnectionSettingsError, match="is not the address of a service"):
            ask(url)


@pytest.mark.parametrize("token", ["schlüssel", "a\nb", "a b", "a\x1b"])
def test_a_key_that_no_header_can_carry_is_refused(token):
    with pytest.raises(ConnectionSettingsError, match="API key"):
        Client("http://127.0.0.1:1", token)


def test_without_encryption_no_certificate_is_trusted(service):
    with Client(service.url, "key") as client:
        pool = client.transport._http._transport._pool  # type: ignore[attr-defined]
        assert isinstance(pool._ssl_context, ssl.SSLContext)
        assert pool._ssl_context.verify_mode is ssl.CERT_REQUIRED
        assert pool._ssl_context.get_ca_certs() == []
