"""Requests of webhooks: which addresses they may reach, how they are signed, what they never follow or wait for."""

import base64
import datetime
import hmac
import ssl
from pathlib import Path

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from standardwebhooks import Webhook, WebhookVerificationError

from service.webhooks import sending
from tests.service.webhooks.receiver import receiving

SECRET, OTHER = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
BODY = '{"id":"whe_a"}'


def ask(url: str, **more: object) -> sending.Outgoing:
    return sending.Outgoing("dlv_a", url, BODY, SECRET)


class Names:
    """A resolver that answers with a list of addresses, one list after the other, and counts how often it was asked."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    async def __call__(self, _host: str, _port: int) -> list[str]:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


def sent(sender: sending.Sender, url: str) -> sending.Answer:
    return sender.send([ask(url)])["dlv_a"]


def test_a_receiver_verifies_a_request_with_the_library():
    with receiving() as receiver:
        assert sent(sending.Sender(private=True), receiver.url) == sending.Answer(status=204)
    (headers,), (body,) = receiver.headers, receiver.bodies
    assert body == BODY.encode()
    assert headers["Content-Type"] == "application/json"
    assert headers["webhook-id"] == "whe_a"
    assert Webhook(SECRET).verify(body, headers) == {"id": "whe_a"}
    late = headers | {"webhook-timestamp": str(int(headers["webhook-timestamp"]) - 301)}
    for changed, as_sent, secret in ((body + b" ", headers, SECRET), (body, headers, OTHER), (body, late, SECRET)):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(changed, as_sent)


def test_a_signature_is_the_one_that_standard_webhooks_specifies():
    """The HMAC-SHA256 of `id.timestamp.body` under the decoded secret."""
    headers = sending.signature_headers(ask("https://hooks.example.org/"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{BODY}".encode()
    digest = hmac.digest(base64.b64decode(SECRET.removeprefix("whsec_")), signed, "sha256")
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


def test_a_name_is_resolved_once_and_what_was_checked_is_what_is_asked():
    """A name with another address a moment later (DNS rebinding) gains nothing: there is no second look-up."""
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    with receiving() as receiver:
        url = f"http://hooks.test:{receiver.port}/hook"
        assert sent(sending.Sender(private=True, resolve=names), url).delivered
    assert names.asked == 1
    assert receiver.headers[0]["Host"] == f"hooks.test:{receiver.port}"


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"]])
def test_a_name_with_an_address_inside_is_not_asked(addresses):
    with receiving() as receiver:
        answer = sent(
            sending.Sender(private=False, resolve=Names(addresses)), f"https://hooks.test:{receiver.port}/hook"
        )
    assert not answer.delivered
    assert "not public" in str(answer.reason)
    assert receiver.bodies == []


def test_a_redirect_is_not_followed():
    with receiving() as inside, receiving() as receiver:
        receiver.status, receiver.location = 307, inside.url
        answer = sent(sending.Sender(private=True), receiver.url)
    assert (answer.status, answer.delivered) == (307, False)
    assert inside.bodies == []


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch):
    with receiving() as proxy, receiving() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert sent(sending.Sender(private=True), receiver.url).delivered
    assert proxy.bodies == []


def test_nobody_is_waited_for_and_one_that_hangs_keeps_no_other_waiting():
    async def hang(host: str, port: int) -> list[str]:
        if host == "hangs.test":
            await anyio.sleep(60)
        return ["127.0.0.1"]

    with receiving() as slow, receiving() as receiver:
        slow.seconds = 3.0
        urls = {"a": slow.url, "b": "http://hangs.test/", "c": receiver.url}
        requests = [sending.Outgoing(name, url, BODY, SECRET) for name, url in urls.items()]
        answers = sending.Sender(private=True, resolve=hang, seconds_max=0.5).send(requests)
    assert answers["c"].delivered
    assert {answers[name].reason for name in "ab"} == {"There was no answer within 0.5 seconds."}


def test_an_address_that_takes_no_connection_is_followed_by_the_next_one():
    with receiving() as receiver:
        url = f"http://hooks.test:{receiver.port}/"
        assert sent(sending.Sender(private=True, resolve=Names(["127.0.0.9", "127.0.0.1"])), url).delivered
    assert sent(sending.Sender(private=True, resolve=Names([])), url).reason == "The host has no address."
    assert "ConnectError" in str(sent(sending.Sender(private=True, resolve=Names(["127.0.0.1"])), url).reason)


def certificate(folder: Path, name: str) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + made.public_bytes(Encoding.PEM))
    return path


def test_a_certificate_is_that_of_the_name_and_not_of_the_address(tmp_path):
    path = certificate(tmp_path, "hooks.test")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(path)
    trusted = ssl.create_default_context(cafile=path)
    with receiving(tls) as receiver:

        def ask_for(host: str, trusted: ssl.SSLContext | None) -> sending.Answer:
            sender = sending.Sender(private=True, resolve=Names(["127.0.0.1"]), trusted=trusted)
            return sent(sender, f"https://{host}:{receiver.port}/")

        assert ask_for("hooks.test", trusted).delivered
        assert not ask_for("other.test", trusted).delivered
        assert not ask_for("hooks.test", None).delivered, "nobody signed it whom the machine trusts"
    assert len(receiver.bodies) == 1


def test_what_is_asked_at_once_is_bounded_and_nothing_is_lost():
    with receiving() as receiver:
        requests = [sending.Outgoing(str(number), receiver.url, BODY, SECRET) for number in range(50)]
        answers = sending.Sender(private=True).send(requests)
    assert set(answers.values()) == {sending.Answer(status=204)}
    assert len(receiver.bodies) == len(answers) == 50


# --- addresses --------------------------------------------------------------------------------------------------------


INSIDE = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.100.100.200", "192.0.0.192"),
    *("169.254.169.254", "168.63.129.16", "224.0.0.1", "240.0.0.1", "255.255.255.255", "198.18.0.1", "203.0.113.5"),
    *("::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "fe80::1", "fe80::1%eth0"),
    *("fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"),
    *("2002:7f00:1::1", "2002:a9fe:a9fe::", "2001::1", "2001:db8::1", "100::1"),
]


@pytest.mark.parametrize("address", INSIDE)
def test_what_is_inside_is_refused_however_it_is_written(address):
    assert not sending.is_public(address)
    with pytest.raises(sending.AddressRefused, match="OBSCURA_WEBHOOKS_PRIVATE"):
        sending.checked([address], private=False)
    assert sending.checked([address], private=True) == [address]


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001:80b::200e"])
def test_what_is_public_is_reached(address):
    assert sending.is_public(address)
    assert sending.checked([address], private=False) == [address]


def test_one_address_inside_is_enough_to_refuse_a_host():
    with pytest.raises(sending.AddressRefused):
        sending.checked(["8.8.8.8", "10.0.0.1"], private=False)


@pytest.mark.parametrize(
    "url",
    [
        *("http://hooks.example.org/", "ftp://hooks.example.org/", "hooks.example.org", "https://", "https:///x", ""),
        *("https://user:word@hooks.example.org/", "https://hooks.example.org/#part", "https://hooks.example.org/ x"),
        *("https://127.0.0.1/", "https://[::1]:8443/", "https://[::ffff:169.254.169.254]/", "https://10.0.0.1/"),
        *("https://hooks.example.org/\n", "https://hooks.example.org/" + "x" * 500, "https://[fe80::1%25eth0]/"),
    ],
)
def test_a_url_that_is_no_webhooks_is_refused(url):
    with pytest.raises(sending.AddressRefused):
        sending.read_url(url, private=False)


MALFORMED_HOSTS = [
    *("xn--", "xn--a", "a.xn--", "xn--ls8h.example", "xn--zzzzzz99999.org", "xn--zzzzzz99999.org:8443", "xn--.xn--"),
    *("a..b", ".a", "..", ".", "-a.example", "a-.example", "%00", "a%20b", "a%2eb", "*.example.org"),
    *("a,b", "a;b", "a'b", "[::1", "::1]", "[::zz]", "[]", "[v1.a]", "[1.2.3.4]", "[a]"),
    *("a" * 64 + ".example", ".".join(["a" * 60] * 5), "h.example#", "?x", "#x", "@h.example"),
    *("h.example:0", "h.example:65536", "h.example:-1", "h.example:a", "h.example:99999999999999999999"),
    *("h.example:443:443", ":443", "u@h.example", "u:w@h.example", ":@h.example", "@h.example"),
    "h.example\\@i.example",
    *("\u0661\u0662\u0667.0.0.1", "\u200d.example", "\u202eh.example", "h\x00.example", "h\ud800.example"),
    *("\u2603.net", "127.1", "0x7f.1", "2130706433", "0x7f000001", "1.2.3.4.5", "256.1.1.1", "1.2.3.4."),
]


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("host", MALFORMED_HOSTS, ids=ascii)
def test_a_malformed_host_port_or_user_is_refused(host, private):
    for url in (f"https://{host}/", f"https://{host}", f"https://{host}/hook?token=a"):
        with pytest.raises(sending.AddressRefused, match="A webhook's URL must look like"):
            sending.read_url(url, private=private)


@pytest.mark.parametrize(
    "url",
    [
        *("https://faß.example/", "https://例え.jp/@team", "https://h.example?to=a@b", "https://h_1.example.:65535"),
        "https://EXAMPLE.org/a%20b",
    ],
)
def test_an_international_or_unusual_but_valid_url_is_accepted(url):
    assert sending.read_url(url, private=False)[1].isascii()


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://hooks.example.org/obscura?token=a", "hooks.example.org", 443),
        ("https://hooks.example.org:8443", "hooks.example.org", 8443),
        ("https://[2606:4700:4700::1111]/", "2606:4700:4700::1111", 443),
        ("http://127.0.0.1:80/x", "127.0.0.1", 80),
    ],
)
def test_a_url_has_a_host_and_a_port(url, host, port):
    assert sending.read_url(url, private=url.startswith("http:"))[1:] == (host, port)
