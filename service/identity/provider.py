"""The sign-in provider: OpenID Connect with Authlib's Starlette client (authorization code, PKCE, state, nonce).

Pending sign-ins (a cookie) and refresh tokens (in the database) are encrypted with keys derived from the client secret.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
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

from service.dependencies import calling
from service.identity.people import PENDING_SECONDS, Claims, NotVouchedFor, ProviderUnavailable, SignInRefused
from service.logs import get_logger
from service.settings import Settings

TIMEOUT_SECONDS = 5.0
METADATA_SECONDS = 3600.0
LEEWAY_SECONDS = 60  # allowed clock difference to the provider
GROUPS_MAX = 10_000
# Error codes for a refresh token after which the person must sign in again.
SIGN_IN_AGAIN = ("invalid_grant", "interaction_required", "login_required", "consent_required")
# Asymmetric signatures only: any holder of the shared secret could sign with HS256, and anyone with "none".
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
Answer = TypeVar("Answer")


class Provider:
    """The provider in the settings. Methods block for at most a few timeouts: call them in a worker thread."""

    def __init__(self, settings: Settings, clock: Callable[[], datetime]) -> None:
        self._settings, self._clock = settings, clock
        secret = settings.oidc_client_secret.get_secret_value().encode()
        keys = (
            HKDF(algorithm=SHA256(), length=32, salt=None, info=b"obscura/" + purpose).derive(secret)
            for purpose in (b"sign-in", b"refresh token")
        )
        self._cookies, self._tokens = (Fernet(base64.urlsafe_b64encode(key)) for key in keys)
        expected = {"iss": settings.oidc_issuer, "aud": settings.oidc_client_id}
        options = {name: {"essential": True, "value": value} for name, value in expected.items()}
        self._checks: dict[str, Any] = {"claims_options": options, "leeway": LEEWAY_SECONDS}
        self._tls = httpx2.create_ssl_context()
        self._client: tuple[StarletteOAuth2App, float] | None = None  # with its metadata, and the time of reading it
        self._connecting = threading.Lock()
        self._failure: tuple[Exception, float] | None = None  # of the newest connection, and its time

    def begin(self, request: Request, target: str) -> tuple[str, str]:
        """Return the address where a browser signs in, and the cookie that the browser must send back.

        After the sign-in, the browser opens the path `target` of this site.
        """
        pending = request.scope["session"] = {"target": target}
        extra = {name: secrets.token_urlsafe(32) for name in ("state", "nonce")}
        if "offline_access" in self._settings.oidc_scope.split():
            extra["prompt"] = "consent"

        async def redirect(client: StarletteOAuth2App) -> str:
            answer = await client.authorize_redirect(request, f"{self._settings.public_url}/login/callback", **extra)
            return str(answer.headers["location"])

        address, seconds = self._ask(redirect), int(self._clock().timestamp())
        return address, self._cookies.encrypt_at_time(json.dumps(pending).encode(), seconds).decode("ascii")

    def finish(self, request: Request, cookie: str) -> tuple[Claims, str, str]:
        """Return the person who has signed in, their sealed refresh token, and the path to open.

        `request` is the provider's redirect to this site. `cookie` is from `begin`; empty if the browser sent none.

        Raises:
            SignInRefused: the sign-in was not started in this browser, or the provider did not confirm it.
        """
        seconds = int(self._clock().timestamp())
        try:
            pending = json.loads(self._cookies.decrypt_at_time(cookie.encode(), PENDING_SECONDS, seconds))
        except (InvalidToken, UnicodeEncodeError):
            raise SignInRefused(
                f"No sign-in was begun in this browser within the last {PENDING_SECONDS // 60} minutes. Begin again."
            ) from None
        sent, issuer = request.query_params, self._settings.oidc_issuer
        if sent.get("iss", issuer) != issuer or not sent.get("code") or "error" in sent:
            raise SignInRefused("The sign-in provider did not sign you in. Begin again, or ask its administrator.")
        request.scope["session"] = pending

        async def identify(client: StarletteOAuth2App) -> tuple[Mapping[str, Any], Claims]:
            token = await client.authorize_access_token(request, **self._checks)
            if "userinfo" not in token:
                raise SignInRefused("The sign-in provider sent no identity token: it must support OpenID Connect.")
            return token, await self._claims(client, token, token["userinfo"], token["userinfo"]["sub"])

        try:
            token, claims = self._ask(identify)
        except OAuthError as error:
            if error.error == "mismatching_state":
                raise SignInRefused("This sign-in was begun in another browser or too long ago. Begin again.") from None
            raise SignInRefused("This sign-in was used before, or came too late. Begin again.") from None
        if not isinstance(token.get("refresh_token"), str):
            raise SignInRefused(
                "The sign-in provider gave no refresh token, and without it this service cannot confirm you later. Ask "
                "the operator to allow the scope offline_access at the provider, or to set OBSCURA_OIDC_SCOPE."
            )
        return claims, self._tokens.encrypt(token["refresh_token"].encode()).decode("ascii"), pending["target"]

    def confirm(self, subject: str, sealed: str) -> tuple[Claims, str]:
        """Return the provider's current claims about a person, and their next sealed refresh token.

        Raises:
            NotVouchedFor: the provider no longer vouches for them.
        """
        try:
            refresh_token = self._tokens.decrypt(sealed.encode()).decode()
        except InvalidToken:
            raise NotVouchedFor("The client secret has changed. Sign in again.") from None

        async def refresh(client: StarletteOAuth2App) -> tuple[Mapping[str, Any], Claims]:
            token = await client.fetch_access_token(grant_type="refresh_token", refresh_token=refresh_token)
            identity = await client.parse_id_token(token, nonce=None, **self._checks)  # None if the provider sends none
            return token, await self._claims(client, token, identity or {}, subject)

        try:
            token, claims = self._ask(refresh)
        except OAuthError:
            raise NotVouchedFor("The sign-in provider no longer vouches for this person.") from None
        next_token: str = token.get("refresh_token") or refresh_token
        return claims, self._tokens.encrypt(next_token.encode()).decode("ascii")

    def _ask(self, step: Callable[[StarletteOAuth2App], Awaitable[Answer]]) -> Answer:
        """Run a step in this thread, because `calling` limits threads. Raise OAuthError if the provider rejects it."""

        async def run() -> Answer:
            asked = time.monotonic()
            with self._connecting:  # simultaneous callers share one request for the metadata, and its failure
                if self._failure is not None and self._failure[1] > asked:
                    raise self._failure[0]
                if self._client is None or asked - self._client[1] >= METADATA_SECONDS:
                    self._client = None
                    try:
                        self._client = await self._connect(), time.monotonic()
                    except Exception as error:
                        self._failure = error, time.monotonic()
                        raise
                client, _ = self._client
            return await step(client)

        with calling("provider"):
            try:
                return anyio.run(run)
            except JoseError as error:
                get_logger(__name__).warning("identity_refused", error=type(error).__name__)
                raise SignInRefused("The sign-in provider did not sign your identity for this service.") from None
            except (httpx2.HTTPError, httpx2.InvalidURL, OAuthError, ValueError, KeyError, TypeError) as error:
                code = getattr(error, "error", None)  # an OAuth code from a closed list: other details may name people
                if code in (*SIGN_IN_AGAIN, "mismatching_state"):
                    raise
                get_logger(__name__).error("provider_unavailable", error=type(error).__name__, code=code)
                answered = self._client is not None and not isinstance(error, httpx2.TransportError)
                raise ProviderUnavailable(answered=answered) from None

    async def _connect(self) -> StarletteOAuth2App:
        settings = self._settings
        client = OAuth().register(
            "provider",
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_client_secret.get_secret_value(),
            server_metadata_url=f"{settings.oidc_issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={
                "scope": settings.oidc_scope,
                "code_challenge_method": "S256",
                "timeout": TIMEOUT_SECONDS,
                "verify": self._tls,
            },
        )
        metadata = await client.load_server_metadata()
        if metadata["issuer"] != settings.oidc_issuer:
            message = "The issuer in the provider's metadata differs from OBSCURA_OIDC_ISSUER."
            get_logger(__name__).error("operator_needed", code="wrong_issuer", message=message)
            raise ValueError("another issuer")
        await client.fetch_jwk_set()
        metadata["id_token_signing_alg_values_supported"] = ALGORITHMS  # the provider may also list "none"
        return client

    async def _claims(
        self, client: StarletteOAuth2App, token: Mapping[str, Any], identity: Mapping[str, Any], subject: str
    ) -> Claims:
        # The user info is newer than the identity token, so it takes precedence.
        facts, endpoint = dict(identity), client.server_metadata.get("userinfo_endpoint")
        if endpoint:
            # Authlib's own token handling would use the refresh token if the access token is about to expire.
            headers = {"Authorization": f"Bearer {token['access_token']}", "Accept": "application/json"}
            answer = await client.get(endpoint, headers=headers, withhold_token=True)
            if answer.status_code in (401, 403):
                raise NotVouchedFor("The sign-in provider no longer vouches for this person.")
            facts |= answer.raise_for_status().json()
        if facts.get("sub") != subject:
            raise SignInRefused(
                "The sign-in provider returned a different person from the one who signed in. Sign in again."
            )
        texts = [facts.get(claim) for claim in ("name", "preferred_username", "email", "sub")]
        groups, email = facts.get(self._settings.oidc_groups_claim), facts.get("email")
        return Claims(
            subject=subject,
            names=[text for text in texts if isinstance(text, str)],
            email=email if isinstance(email, str) else None,
            groups=frozenset(str(group) for group in groups[:GROUPS_MAX]) if isinstance(groups, list) else frozenset(),
        )
