"""What is asked of the sign-in provider, by OpenID Connect: the authorization code flow with PKCE, state and nonce, and
refresh tokens, by which it is asked again and again whether it still vouches for a person.

What a browser carries between the first step and the last, and the refresh tokens in the database, are sealed by keys
that follow from the client's secret: whoever has it could ask the provider anyway. So all API processes know them.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from service.dependencies import calling, require_place
from service.identity.people import Claims, NotVouchedFor, ProviderUnavailable, SignInRefused
from service.logs import get_logger
from service.settings import Settings

CALLBACK_PATH = "/login/callback"
PENDING_SECONDS = 600  # between the first step of a sign-in and the last; the dashboard's cookie lasts as long
TIMEOUT_SECONDS = 5.0
METADATA_SECONDS = 3600.0
METADATA_AGAIN_SECONDS = 30.0  # before unknown keys make us ask for them anew
METADATA_FAILED_SECONDS = 2.0  # before a failed request for them is repeated
LEEWAY_SECONDS = 60  # between the provider's clock and ours
GROUPS_MAX = 10_000
# What a provider answers to a refresh token of somebody who must sign in with it again, if they still can.
SIGN_IN_AGAIN = ("invalid_grant", "interaction_required", "login_required", "consent_required")
# Signatures by which nobody but the provider can have signed: with those of a shared secret, each client could.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]


@dataclass(frozen=True)
class Pending:
    """What a browser carries, sealed, from the first step of a sign-in to the last."""

    state: str
    nonce: str
    verifier: str
    target: str


@dataclass(frozen=True)
class _Metadata:
    """What the provider says about itself, and when it was asked, on a clock that never goes back."""

    facts: Mapping[str, Any]
    keys: KeySet
    read_at: float


class Provider:
    """The provider that the settings name.

    Args:
        settings: with an issuer.
        clock: returns the time, aware.
    """

    def __init__(self, settings: Settings, clock: Callable[[], datetime]) -> None:
        self._settings, self._clock = settings, clock
        secret = settings.oidc_client_secret.get_secret_value().encode()
        self._cookies, self._tokens = _sealed_by(secret, b"sign-in"), _sealed_by(secret, b"refresh token")
        self._tls = httpx2.create_ssl_context()
        self._metadata: _Metadata | None = None
        self._fetching, self._failed_at, self._failed_answered = threading.Lock(), float("-inf"), False

    def begin(self, target: str) -> tuple[str, str]:
        """Return where a browser goes to sign in, and the cookie that it must bring back.

        Args:
            target: path of this site to which it leads in the end.

        Raises:
            ProviderUnavailable: it does not answer.
        """
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        pending = Pending(state, nonce, verifier, target)
        offline = {"prompt": "consent"} if "offline_access" in self._settings.oidc_scope.split() else {}
        with self._asking() as client:
            endpoint = self._known(client).facts["authorization_endpoint"]
            parts = {"state": pending.state, "nonce": pending.nonce, "code_verifier": pending.verifier, **offline}
            address, _state = client.create_authorization_url(endpoint, **parts)
        sealed = self._cookies.encrypt_at_time(json.dumps(vars(pending)).encode(), self._seconds())
        return str(address), sealed.decode("ascii")

    def finish(self, cookie: str, answer: Mapping[str, str]) -> tuple[Claims, str, str]:
        """Return who has signed in, their sealed refresh token, and the path to which that leads.

        Args:
            cookie: that `begin` made; empty where the browser has brought none.
            answer: what the provider has sent the browser back with.

        Raises:
            SignInRefused: it is not the answer to a sign-in that this browser has begun, or it is a refusal, or the
                identity is not signed by the provider for us, now.
            ProviderUnavailable: it does not answer.
        """
        pending = self._pending(cookie)
        if not hmac.compare_digest(answer.get("state", "").encode(), pending.state.encode()):
            raise SignInRefused("This is not the answer to the sign-in that this browser has begun. Begin again.")
        if answer.get("iss", self._settings.oidc_issuer) != self._settings.oidc_issuer or not answer.get("code"):
            raise SignInRefused("The sign-in provider did not sign you in. Begin again, or ask whoever looks after it.")
        with self._asking() as client:
            try:
                token = client.fetch_token(
                    self._known(client).facts["token_endpoint"],
                    grant_type="authorization_code",
                    code=answer["code"],
                    code_verifier=pending.verifier,
                    redirect_uri=self._callback(),
                )
            except OAuthError as error:
                if error.error != "invalid_grant":
                    raise
                raise SignInRefused("This sign-in was used before, or came too late. Begin again.") from None
            identity = self._identity(client, token, nonce=pending.nonce)
            claims = self._claims(client, token, identity, str(identity["sub"]))
        refresh_token = token.get("refresh_token")
        if not isinstance(refresh_token, str):
            raise SignInRefused(
                "The sign-in provider gave no refresh token, by which it could be asked whether you are still there. "
                "Let it give this service one (the scope offline_access), or set OBSCURA_OIDC_SCOPE."
            )
        return claims, self._seal(refresh_token), pending.target

    def confirm(self, subject: str, sealed: str) -> tuple[Claims, str]:
        """Return what the provider says of a person now, and their next sealed refresh token.

        Raises:
            NotVouchedFor: it no longer vouches for them.
            ProviderUnavailable: it does not answer, or not as it must.
        """
        try:
            refresh_token = self._tokens.decrypt(sealed.encode()).decode()
        except InvalidToken:
            raise NotVouchedFor("The client's secret is another one since. Sign in again.") from None
        with self._asking() as client:
            try:
                endpoint = self._known(client).facts["token_endpoint"]
                token = client.fetch_token(endpoint, grant_type="refresh_token", refresh_token=refresh_token)
            except OAuthError as error:
                if error.error not in SIGN_IN_AGAIN:
                    raise
                raise NotVouchedFor("The sign-in provider no longer vouches for this person.") from None
            identity = self._identity(client, token) if "id_token" in token else {}
            claims = self._claims(client, token, identity, subject)
        return claims, self._seal(token.get("refresh_token") or refresh_token)

    def _pending(self, cookie: str) -> Pending:
        try:
            opened = self._cookies.decrypt_at_time(cookie.encode(), PENDING_SECONDS, self._seconds())
        except (InvalidToken, UnicodeEncodeError):
            raise SignInRefused(
                f"No sign-in was begun in this browser within the last {PENDING_SECONDS // 60} minutes. Begin again."
            ) from None
        return Pending(**json.loads(opened))

    def _identity(self, client: OAuth2Client, token: Mapping[str, Any], **given: str) -> Mapping[str, Any]:
        """Return the claims of an ID token that the provider has signed for us, and that is in time."""
        settings = self._settings
        try:
            try:
                read = jwt.decode(token["id_token"], self._known(client).keys, algorithms=ALGORITHMS)
            except ValueError:  # no key of that name: the provider may have made new ones since
                read = jwt.decode(token["id_token"], self._known(client, anew=True).keys, algorithms=ALGORITHMS)
            wanted = {"iss": settings.oidc_issuer, "aud": settings.oidc_client_id}
            options: Any = {name: {"essential": True, "value": value} for name, value in wanted.items()}
            about = {"client_id": settings.oidc_client_id, "access_token": token.get("access_token"), **given}
            claims = CodeIDToken(read.claims, read.header, options, about)
            claims.validate(self._seconds(), LEEWAY_SECONDS)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            get_logger(__name__).warning("identity_refused", error=type(error).__name__)
            raise SignInRefused(
                "What came as your identity is not signed by the sign-in provider for this service."
            ) from None
        return dict(claims)

    def _claims(
        self, client: OAuth2Client, token: Mapping[str, Any], identity: Mapping[str, Any], subject: str
    ) -> Claims:
        """Return what the provider says of whom a token is about: its answer now, else what stands in the token."""
        facts = dict(identity)
        endpoint = self._known(client).facts.get("userinfo_endpoint")
        if endpoint:
            headers = {"Authorization": f"Bearer {token['access_token']}", "Accept": "application/json"}
            answer = client.request("GET", endpoint, headers=headers, withhold_token=True)
            if answer.status_code in (401, 403):
                raise NotVouchedFor("The sign-in provider no longer vouches for this person.")
            facts |= _object(answer)
        if facts.get("sub") != subject:
            raise SignInRefused("The sign-in provider speaks of somebody else than who signed in.")
        names = [facts.get(claim) for claim in ("name", "preferred_username", "email", "sub")]
        groups, email = facts.get(self._settings.oidc_groups_claim), facts.get("email")
        return Claims(
            subject=subject,
            names=[name for name in names if isinstance(name, str)],
            email=email if isinstance(email, str) else None,
            groups=frozenset(str(group) for group in groups[:GROUPS_MAX]) if isinstance(groups, list) else frozenset(),
        )

    def _known(self, client: OAuth2Client, *, anew: bool = False) -> _Metadata:
        """Return what the provider says about itself, as it said within the last hour unless that is wanted anew."""
        require_place("provider")
        seconds = METADATA_AGAIN_SECONDS if anew else METADATA_SECONDS
        known = self._metadata
        if known is not None and time.monotonic() - known.read_at < seconds:
            return known
        with self._fetching:  # one request, however many wait for its answer
            known = self._metadata
            if known is not None and time.monotonic() - known.read_at < seconds:
                return known
            if time.monotonic() - self._failed_at < METADATA_FAILED_SECONDS:
                raise ProviderUnavailable(answered=self._failed_answered)
            try:
                with _as_unavailable():
                    self._metadata = self._fetch(client)
            except ProviderUnavailable as error:
                self._failed_at, self._failed_answered = time.monotonic(), error.answered
                raise
            return self._metadata

    def _fetch(self, client: OAuth2Client) -> _Metadata:
        issuer = self._settings.oidc_issuer
        address = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        facts = _object(client.request("GET", address, withhold_token=True))
        if facts["issuer"] != issuer:
            get_logger(__name__).error("operator_needed", code="wrong_issuer", message="The provider has another name.")
            raise ProviderUnavailable(answered=True)
        keys: Any = _object(client.request("GET", facts["jwks_uri"], withhold_token=True))
        return _Metadata(facts, KeySet.import_key_set(keys), time.monotonic())

    @contextmanager
    def _asking(self) -> Iterator[OAuth2Client]:
        """Open a client of the provider. What goes wrong with its answers says that it is not available."""
        settings = self._settings
        with (
            calling("provider"),
            _as_unavailable(),
            OAuth2Client(
                client_id=settings.oidc_client_id,
                client_secret=settings.oidc_client_secret.get_secret_value(),
                scope=settings.oidc_scope,
                redirect_uri=self._callback(),
                code_challenge_method="S256",
                timeout=TIMEOUT_SECONDS,
                verify=self._tls,
            ) as client,
        ):
            yield client

    def _callback(self) -> str:
        return f"{self._settings.public_url}{CALLBACK_PATH}"

    def _seal(self, refresh_token: str) -> str:
        return self._tokens.encrypt(refresh_token.encode()).decode("ascii")

    def _seconds(self) -> int:
        return int(self._clock().timestamp())


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, OAuthError, JoseError, ValueError, KeyError) as error:
        what = getattr(error, "error", None)  # of OAuth, from a closed list: the rest may name people
        get_logger(__name__).error("provider_unavailable", error=type(error).__name__, code=what)
        raise ProviderUnavailable(answered=not isinstance(error, httpx2.TransportError)) from None


def _object(answer: httpx2.Response) -> dict[str, Any]:
    """Return the JSON object that an answer holds.

    Raises:
        HTTPError: it is no success.
        ValueError: it holds something else.
    """
    found = answer.raise_for_status().json()
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def _sealed_by(secret: bytes, purpose: bytes) -> Fernet:
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"obscura/" + purpose).derive(secret)
    return Fernet(base64.urlsafe_b64encode(key))
