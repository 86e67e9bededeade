"""The sign-in provider: OpenID Connect by Authlib's Starlette client (authorization code, PKCE, state, nonce), and
refresh tokens by which the service keeps asking whether the provider still vouches for a person.

The browser's pending sign-in and the refresh tokens in the database are encrypted with keys derived from the client
secret, which every API process has and which would let anybody ask the provider anyway.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import anyio
import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.starlette_client import OAuth, StarletteOAuth2App
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from fastapi import Request
from joserfc.errors import JoseError

from service.dependencies import calling, require_place
from service.identity.people import Claims, NotVouchedFor, ProviderUnavailable, SignInRefused
from service.logs import get_logger
from service.settings import Settings

CALLBACK_PATH = "/login/callback"
PENDING_SECONDS = 600  # from the first step of a sign-in to the last; the dashboard's cookie lasts as long
TIMEOUT_SECONDS = 5.0
METADATA_SECONDS = 3600.0
METADATA_FAILED_SECONDS = 2.0  # before a failed request for the metadata is repeated
LEEWAY_SECONDS = 60  # between the provider's clock and ours
GROUPS_MAX = 10_000
# Answers to a refresh token that mean: the person must sign in at the provider again, if they still can.
SIGN_IN_AGAIN = ("invalid_grant", "interaction_required", "login_required", "consent_required")
# Only signatures that nobody but the provider can make. With a shared secret, every client could; "none" is nobody's.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
Answer = TypeVar("Answer")


class Provider:
    """The provider that the settings name. Methods block, for at most a few timeouts: call them in a worker thread.

    Args:
        settings: with an issuer.
        clock: returns the time, aware.
    """

    def __init__(self, settings: Settings, clock: Callable[[], datetime]) -> None:
        self._settings, self._clock = settings, clock
        secret = settings.oidc_client_secret.get_secret_value().encode()
        self._cookies, self._tokens = _sealed_by(secret, b"sign-in"), _sealed_by(secret, b"refresh token")
        self._tls = httpx2.create_ssl_context()
        self._client: tuple[StarletteOAuth2App, float] | None = None  # with metadata, and when that was read
        self._connecting, self._failed_at, self._failed_answered = threading.Lock(), float("-inf"), False

    def begin(self, request: Request, target: str) -> tuple[str, str]:
        """Return the address where a browser signs in, and the cookie that it must bring back.

        Args:
            target: path of this site to which the sign-in leads in the end.

        Raises:
            ProviderUnavailable: it does not answer.
        """
        pending = request.scope["session"] = {"target": target}
        extra = {"prompt": "consent"} if "offline_access" in self._settings.oidc_scope.split() else {}
        extra |= {name: secrets.token_urlsafe(32) for name in ("state", "nonce")}
        callback = f"{self._settings.public_url}{CALLBACK_PATH}"

        async def redirect(client: StarletteOAuth2App) -> str:
            answer = await client.authorize_redirect(request, callback, **extra)
            return str(answer.headers["location"])

        address = self._ask(redirect)
        return address, self._cookies.encrypt_at_time(json.dumps(pending).encode(), self._seconds()).decode("ascii")

    def finish(self, request: Request, cookie: str) -> tuple[Claims, str, str]:
        """Return who has signed in, their sealed refresh token, and the path to which that leads.

        Args:
            request: the one to which the provider has sent the browser back.
            cookie: that `begin` made; empty if the browser sent none.

        Raises:
            SignInRefused: this browser began no such sign-in, the provider refuses it, or the identity is not signed
                by the provider for this service, now.
            ProviderUnavailable: it does not answer.
        """
        try:
            pending = json.loads(self._cookies.decrypt_at_time(cookie.encode(), PENDING_SECONDS, self._seconds()))
        except (InvalidToken, UnicodeEncodeError):
            raise SignInRefused(
                f"No sign-in was begun in this browser within the last {PENDING_SECONDS // 60} minutes. Begin again."
            ) from None
        sent, issuer = request.query_params, self._settings.oidc_issuer
        if sent.get("iss", issuer) != issuer or not sent.get("code") or "error" in sent:
            raise SignInRefused("The sign-in provider did not sign you in. Begin again, or ask whoever looks after it.")
        request.scope["session"] = pending

        async def identify(client: StarletteOAuth2App) -> tuple[Mapping[str, Any], Claims]:
            token = await client.authorize_access_token(request, **self._checks())
            if "userinfo" not in token:
                raise SignInRefused("The sign-in provider sent no identity: it must speak OpenID Connect.")
            return token, await self._claims(client, token, token["userinfo"], token["userinfo"]["sub"])

        try:
            token, claims = self._ask(identify)
        except OAuthError as error:
            said = "This sign-in was used before, or came too late. Begin again."
            if error.error == "mismatching_state":
                said = "This is not the answer to the sign-in that this browser has begun. Begin again."
            raise SignInRefused(said) from None
        if not isinstance(token.get("refresh_token"), str):
            raise SignInRefused(
                "The sign-in provider gave no refresh token, by which it could be asked whether you are still there. "
                "Let it give this service one (the scope offline_access), or set OBSCURA_OIDC_SCOPE."
            )
        return claims, self._seal(token["refresh_token"]), pending["target"]

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

        async def refresh(client: StarletteOAuth2App) -> tuple[Mapping[str, Any], Claims]:
            token = await client.fetch_access_token(grant_type="refresh_token", refresh_token=refresh_token)
            identity = await client.parse_id_token(token, nonce=None, **self._checks())  # None if it sends none
            return token, await self._claims(client, token, identity or {}, subject)

        try:
            token, claims = self._ask(refresh)
        except OAuthError:
            raise NotVouchedFor("The sign-in provider no longer vouches for this person.") from None
        return claims, self._seal(token.get("refresh_token") or refresh_token)

    def _ask(self, step: Callable[[StarletteOAuth2App], Awaitable[Answer]]) -> Answer:
        """Take a step with the provider, in an event loop of this thread: threads are what `calling` bounds.

        Raises:
            OAuthError: it refuses the step, and answers as it should.
            SignInRefused: the identity is not signed by the provider for this service, now.
            ProviderUnavailable: it does not answer, or not as it must.
        """
        with calling("provider"):
            client = self._connected()
            with _as_unavailable():
                try:
                    return anyio.run(step, client)
                except JoseError as error:
                    get_logger(__name__).warning("identity_refused", error=type(error).__name__)
                    raise SignInRefused(
                        "What came as your identity is not signed by the sign-in provider for this service."
                    ) from None

    def _connected(self) -> StarletteOAuth2App:
        """Return the client with the provider's metadata of the last hour: one request, however many wait for it."""
        require_place("provider")
        with self._connecting:
            now = time.monotonic()
            if self._client is not None and now - self._client[1] < METADATA_SECONDS:
                return self._client[0]
            if now - self._failed_at < METADATA_FAILED_SECONDS:
                raise ProviderUnavailable(answered=self._failed_answered)
            try:
                with _as_unavailable():
                    client = anyio.run(self._connect)
            except ProviderUnavailable as error:
                self._failed_at, self._failed_answered = time.monotonic(), error.answered
                raise
            self._client = client, now
            return client

    async def _connect(self) -> StarletteOAuth2App:
        settings = self._settings
        common = {"scope": settings.oidc_scope, "code_challenge_method": "S256"}
        client = OAuth().register(
            "provider",
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_client_secret.get_secret_value(),
            server_metadata_url=f"{settings.oidc_issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs=common | {"timeout": TIMEOUT_SECONDS, "verify": self._tls},
        )
        metadata = await client.load_server_metadata()
        if metadata["issuer"] != settings.oidc_issuer:
            get_logger(__name__).error("operator_needed", code="wrong_issuer", message="The provider has another name.")
            raise ValueError("another issuer")
        await client.fetch_jwk_set()
        metadata["id_token_signing_alg_values_supported"] = ALGORITHMS  # whatever it lists, "none" for instance
        return client

    def _checks(self) -> dict[str, Any]:
        expected = {"iss": self._settings.oidc_issuer, "aud": self._settings.oidc_client_id}
        options = {name: {"essential": True, "value": value} for name, value in expected.items()}
        return {"claims_options": options, "leeway": LEEWAY_SECONDS}

    async def _claims(
        self, client: StarletteOAuth2App, token: Mapping[str, Any], identity: Mapping[str, Any], subject: str
    ) -> Claims:
        """Return what the provider says of a token's person: its answer now takes precedence over the identity."""
        facts, endpoint = dict(identity), client.server_metadata.get("userinfo_endpoint")
        if endpoint:
            # Authlib would use up the refresh token where the access token is about to expire.
            headers = {"Authorization": f"Bearer {token['access_token']}", "Accept": "application/json"}
            answer = await client.get(endpoint, headers=headers, withhold_token=True)
            if answer.status_code in (401, 403):
                raise NotVouchedFor("The sign-in provider no longer vouches for this person.")
            facts |= answer.raise_for_status().json()
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

    def _seal(self, refresh_token: str) -> str:
        return self._tokens.encrypt(refresh_token.encode()).decode("ascii")

    def _seconds(self) -> int:
        return int(self._clock().timestamp())


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, OAuthError, ValueError, KeyError, TypeError) as error:
        code = getattr(error, "error", None)  # of OAuth, from a closed list: the rest may name people
        if code in (*SIGN_IN_AGAIN, "mismatching_state"):
            raise
        get_logger(__name__).error("provider_unavailable", error=type(error).__name__, code=code)
        raise ProviderUnavailable(answered=not isinstance(error, httpx2.TransportError)) from None


def _sealed_by(secret: bytes, purpose: bytes) -> Fernet:
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"obscura/" + purpose).derive(secret)
    return Fernet(base64.urlsafe_b64encode(key))
