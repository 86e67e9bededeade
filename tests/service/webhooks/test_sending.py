"""Requests of webhooks against real sockets: where they go, how they are signed, what they never follow or wait for."""

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

from service.webhooks.sending import Answer, Outgoing, Sender, signature_headers
from tests.service.webhooks.receiver import receiving

SECRET, OTHER = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
BODY = '{"id":"whe_a"}'


def ask(url: str, **more: object) -> Outgoing:
    return Outgoing("dlv_a", url, BODY, SECRET)


class Names:
    """A resolver that answers with a list of addresses, one list after the other, and counts how often it was asked."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    async def __call__(self, _host: str, _port: int) -> list[str]:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


def sent(sender: Sender, url: str) -> Answer:
    return sender.send([ask(url)])["dlv_a"]


def test_a_receiver_verifies_a_request_with_the_library():
    with receiving() as receiver:
        assert sent(Sender(private=True), receiver.url) == Answer(status=204)
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
    headers = signature_headers(ask("https://hooks.example.org/"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{BODY}".encode()
    digest = hmac.digest(base64.b64decode(SECRET.removeprefix("whsec_")), signed, "sha256")
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


def test_a_name_is_resolved_once_and_what_was_checked_is_what_is_asked():
    """A name with another address a moment later (DNS rebinding) gains nothing: there is no second look-up."""
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    with receiving() as receiver:
        url = f"http://hooks.test:{receiver.port}/hook"
        assert sent(Sender(private=True, resolve=names), url).delivered
    assert names.asked == 1
    assert receiver.headers[0]["Host"] == f"hooks.test:{receiver.port}"


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"]])
def test_a_name_with_an_address_inside_is_not_asked(addresses):
    with receiving() as receiver:
        answer = sent(Sender(private=False, resolve=Names(addresses)), f"https://hooks.test:{receiver.port}/hook")
    assert not answer.delivered
    assert "not public" in str(answer.reason)
    assert receiver.bodies == []


def test_a_redirect_is_not_followed():
    with receiving() as inside, receiving() as receiver:
        receiver.status, receiver.location = 307, inside.url
        answer = sent(Sender(private=True), receiver.url)
    assert (answer.status, answer.delivered) == (307, False)
    assert inside.bodies == []


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch):
    with receiving() as proxy, receiving() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert sent(Sender(private=True), receiver.url).delivered
    assert proxy.bodies == []


def test_nobody_is_waited_for_and_one_that_hangs_keeps_no_other_waiting():
    async def hang(host: str, port: int) -> list[str]:
        if host == "hangs.test":
            await anyio.sleep(60)
        return ["127.0.0.1"]

    with receiving() as slow, receiving() as receiver:
        slow.seconds = 3.0
        urls = {"a": slow.url, "b": "http://hangs.test/", "c": receiver.url}
        requests = [Outgoing(name, url, BODY, SECRET) for name, url in urls.items()]
        answers = Sender(private=True, resolve=hang, seconds_max=0.5).send(requests)
    assert answers["c"].delivered
    assert {answers[name].reason for name in "ab"} == {"There was no answer within 0.5 seconds."}


def test_an_address_that_takes_no_connection_is_followed_by_the_next_one():
    with receiving() as receiver:
        url = f"http://hooks.test:{receiver.port}/"
        assert sent(Sender(private=True, resolve=Names(["127.0.0.9", "127.0.0.1"])), url).delivered
    assert sent(Sender(private=True, resolve=Names([])), url).reason == "The host has no address."
    assert "ConnectError" in str(sent(Sender(private=True, resolve=Names(["127.0.0.1"])), url).reason)


def certificate(folder: Path, name: str) -> Path:
    """A certificate of a name, signed by itself, with its key."""
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

        def ask_for(host: str, trusted: ssl.SSLContext | None) -> Answer:
            sender = Sender(private=True, resolve=Names(["127.0.0.1"]), trusted=trusted)
            return sent(sender, f"https://{host}:{receiver.port}/")

        assert ask_for("hooks.test", trusted).delivered
        assert not ask_for("other.test", trusted).delivered
        assert not ask_for("hooks.test", None).delivered, "nobody signed it whom the machine trusts"
    assert len(receiver.bodies) == 1


def test_what_is_asked_at_once_is_bounded_and_nothing_is_lost():
    with receiving() as receiver:
        requests = [Outgoing(str(number), receiver.url, BODY, SECRET) for number in range(50)]
        answers = Sender(private=True).send(requests)
    assert set(answers.values()) == {Answer(status=204)}
    assert len(receiver.bodies) == len(answers) == 50
