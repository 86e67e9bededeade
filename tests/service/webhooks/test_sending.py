"""Requests of webhooks against real sockets: where they go, how they are signed, what they never follow or wait for."""

import datetime
import ssl
from pathlib import Path

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from obscura import SignatureMismatch, verify_webhook
from obscura.wire.signatures import sign_webhook
from service.webhooks.sending import Answer, Outgoing, Sender
from tests.service.webhooks.receiver import receiving

SECRET, FORMER = "whsec_new", "whsec_old"
BODY = b'{"id":"whe_a"}'


def ask(url: str, **more: object) -> Outgoing:
    return Outgoing("dlv_a", url, BODY, [SECRET, FORMER])


class Names:
    """A resolver that answers with a list of addresses, one list after the other, and counts how often it was asked."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    async def __call__(self, _host: str, _port: int) -> list[str]:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


def sent(sender: Sender, url: str) -> Answer:
    return sender.send([ask(url)])["dlv_a"]


def test_a_request_carries_a_signature_under_each_secret():
    with receiving() as receiver:
        assert sent(Sender(private=True), receiver.url) == Answer(status=204)
    (headers,) = receiver.headers
    assert receiver.bodies == [BODY]
    assert headers["Content-Type"] == "application/json"
    for secret in (SECRET, FORMER):
        verify_webhook(BODY, headers["Obscura-Signature"], secret)
    for body, secret in ((BODY + b" ", SECRET), (BODY, "whsec_other")):
        with pytest.raises(SignatureMismatch):
            verify_webhook(body, headers["Obscura-Signature"], secret)


def test_a_signature_is_as_stripe_documents_it():
    header = sign_webhook(b"{}", ["whsec_test"], seconds=1700000000)
    # printf '1700000000.{}' | openssl dgst -sha256 -hmac whsec_test
    assert header == "t=1700000000,v1=35495024f4ef3f94e5a93e22221544c4b75e9a42300cd965ab81cb85cd994e91"


@pytest.mark.parametrize("header", ["", "t=1", "v1=ab", "t=,v1=ab", "t=1,t=2,v1=ab", "t=-1,v1=ab", "t=²,v1=ab"])
def test_a_header_of_another_form_is_refused(header):
    with pytest.raises(SignatureMismatch):
        verify_webhook(b"{}", header, SECRET, now_seconds=1)


def test_an_old_request_is_refused():
    header = sign_webhook(b"{}", [SECRET], seconds=1000)
    verify_webhook(b"{}", header, SECRET, now_seconds=1300)
    for now in (1301, 699):
        with pytest.raises(SignatureMismatch, match="too old"):
            verify_webhook(b"{}", header, SECRET, now_seconds=now)


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
        requests = [Outgoing(name, url, BODY, [SECRET]) for name, url in urls.items()]
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
        requests = [Outgoing(str(number), receiver.url, BODY, [SECRET]) for number in range(50)]
        answers = Sender(private=True).send(requests)
    assert set(answers.values()) == {Answer(status=204)}
    assert len(receiver.bodies) == len(answers) == 50
