"""The settings of one process, read from the environment (prefix OBSCURA_) and passed as an argument."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from obscura.private_files import admin_key_path
from obscura.wire.schemas import Role

_ORIGIN = re.compile(r"https?://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")
_SAFE_ISSUER = re.compile(r"https://|http://(?:127\.0\.0\.1|localhost|\[::1\])(?::|/|$)")
ResolvedPath = Annotated[Path, AfterValidator(Path.resolve)]


class Settings(BaseSettings):
    """All settings of an operator. Immutable; every limit has a value.

    If `database_url` is empty, the database is an SQLite file in `data_dir`.
    """

    model_config = SettingsConfigDict(env_prefix="OBSCURA_", frozen=True, extra="ignore")

    data_dir: ResolvedPath = Field(
        default=Path("var"), validate_default=True, description="folder of uploads, releases and keys"
    )
    storage: str = Field(
        default="folder",
        description="where files that outlive processes are kept: folder (the data folder), or s3://bucket/prefix",
    )
    database_url: str = Field(default="", description="SQLAlchemy URL; empty: SQLite in data_dir")
    mode: Literal["embedded", "celery"] = Field(
        default="embedded", description="embedded: the server runs jobs; celery: workers run them"
    )
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", description="broker of the mode celery")
    ledger_key_file: Path | None = Field(default=None, description="file of the signing key; default: in keys_dir")
    keys_dir: ResolvedPath | None = Field(default=None, description="folder of encryption keys; default: in data_dir")
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8420, ge=0, le=65535, description="port to listen on; 0: any free port")
    public_url: str = Field(default="", description="address at which browsers reach the service; empty: host and port")
    trusted_proxies: str = Field(
        default="127.0.0.1, ::1", description="addresses and networks whose X-Forwarded-For and -Proto are trusted"
    )
    dashboard_public: bool = Field(default=False, description="allow reading the dashboard without a key")
    trash_days: int = Field(
        default=30, ge=0, le=3650, description="days in the trash before a folder is removed for good"
    )
    samples_days: int = Field(
        default=0, ge=0, le=36_500, description="days before a sample's files are removed; 0: never"
    )
    logs_days: int = Field(default=0, ge=0, le=36_500, description="days before logs of attempts are removed; 0: never")
    access_log: bool = Field(default=False, description="log each response")
    audit_log: Literal["off", "on", "required"] = Field(
        default="off",
        description="record each request in the audit log; required: refuse requests that cannot be recorded",
    )
    audit_log_days: int = Field(
        default=365, ge=1, le=36_500, description="days before events of the audit log are removed"
    )
    webhooks_private: bool = Field(
        default=False, description="allow webhooks to addresses that are not public, and without TLS"
    )

    # Sign-in with an OpenID Connect provider; without an issuer, only keys work
    oidc_issuer: str = Field(default="", description="the provider's issuer URL")
    oidc_client_id: str = Field(default="", description="this service's client id at the provider")
    oidc_client_secret: SecretStr = Field(default=SecretStr(""), description="this service's secret at the provider")
    oidc_scope: str = Field(default="openid profile email offline_access", description="scopes to request")
    oidc_groups_claim: str = Field(default="groups", description="the claim that lists a person's groups")
    oidc_groups: dict[str, dict[str, Role]] = Field(
        default={}, description='roles of the members of groups, as JSON: {"GROUP": {"PROJECT_ID": "ROLE"}}'
    )
    oidc_admin_group: str = Field(default="", description="the group whose members are admins of the installation")
    oidc_confirm_seconds: int = Field(
        default=20, ge=1, le=40, description="seconds between two confirmations of a person"
    )
    oidc_key_grace_seconds: int = Field(
        default=900,
        ge=60,
        le=86_400,
        description="seconds for which a person's keys stay valid while the provider does not answer",
    )

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="lowest level to log")

    # Jobs
    lease_seconds: int = Field(
        default=60, ge=1, le=3600, description="seconds until a silent worker's job is taken over"
    )
    heartbeat_seconds: float = Field(default=15, gt=0, le=1200, description="seconds between renewals of a lease")
    job_seconds_max: int = Field(default=24 * 3600, ge=1, description="seconds after which a running job is ended")
    silent_seconds_max: int = Field(
        default=600, ge=1, description="seconds without a sign of life after which a job's runner is ended and resumed"
    )
    attempts_max: int = Field(default=3, ge=1, le=10, description="attempts of a job that may lose their worker")
    processes: int = Field(
        default=0, ge=0, le=64, description="processes that train one job together; 0: one for each GPU"
    )

    # Limits on requests of a caller
    requests_per_minute: int = Field(
        default=6000, ge=0, description="requests a minute of a key, or an address without a key; 0: no limit"
    )
    known_uploads_per_day: int = Field(
        default=20,
        ge=1,
        description="uploads of one key that may reveal known images or subjects; a project may have 5 times as many",
    )
    upload_bytes_max: int = Field(default=2 * 1024**3, ge=1, description="bytes of one upload")
    decoded_bytes_max: int = Field(default=8 * 1024**3, ge=1, description="bytes of decoded images")
    images_max: int = Field(default=2_000_000, ge=1, description="images of one upload")
    pixels_max: int = Field(default=1024 * 1024, ge=1, description="pixels of one image, checked before decoding")
    classes_max: int = Field(default=1000, ge=1, description="classes of a dataset")
    samples_max: int = Field(default=200_000, ge=1, description="images of one sample")
    body_bytes_max: int = Field(default=1024**2, ge=1, description="bytes of one JSON request body")
    page_size_max: int = Field(default=100, ge=1, description="objects in one page of a list")
    ingest_seconds_max: int = Field(default=1800, ge=1, description="seconds for reading one upload")
    ingest_memory_bytes_max: int = Field(
        default=6 * 1024**3, ge=1, description="bytes of memory for reading one upload"
    )
    disk_free_bytes_min: int = Field(
        default=256 * 1024**2, ge=0, description="free bytes required on every disk to begin an upload or a job"
    )

    @classmethod
    def at(cls, folder: Path, **given: Any) -> Self:
        """Return settings for a data folder. Options that are None are ignored."""
        return cls(data_dir=folder, **{name: value for name, value in given.items() if value is not None})

    @model_validator(mode="after")
    def _fill_and_check(self) -> Self:
        if not self.database_url:
            object.__setattr__(self, "database_url", f"sqlite:///{self.data_dir / 'obscura.db'}")
        # Normalize as browsers send an origin: without the default port. An empty value stays empty.
        origin = self.public_url.strip().rstrip("/").lower()
        if origin and _ORIGIN.fullmatch(origin) is None:
            raise ValueError(
                f"public_url must look like https://obscura.example.org, without a path; it is {self.public_url!r}"
            )
        default_port = ":443" if origin.startswith("https:") else ":80"
        object.__setattr__(self, "public_url", origin.removesuffix(default_port))
        _networks(self.trusted_proxies)
        if self.oidc_issuer:
            needed = ("oidc_client_id", "oidc_client_secret", "public_url")
            missing = [f"OBSCURA_{name.upper()}" for name in needed if not getattr(self, name)]
            if missing:
                raise ValueError(f"with OBSCURA_OIDC_ISSUER, {' and '.join(missing)} must be set")
            if not self.oidc_groups and not self.oidc_admin_group:
                raise ValueError(
                    "set OBSCURA_OIDC_GROUPS or OBSCURA_OIDC_ADMIN_GROUP: without them, signing in gives no role"
                )
            if _SAFE_ISSUER.match(self.oidc_issuer) is None:
                raise ValueError("oidc_issuer must be an https address; http is only for a provider on this machine")
        if self.heartbeat_seconds * 2 > self.lease_seconds:
            raise ValueError(
                "heartbeat_seconds must be at most half of lease_seconds, or one late beat loses the lease"
            )
        return self

    @property
    def ledger_key_path(self) -> Path:
        """The path of the key that signs receipts and checkpoints. The key is created at its first use."""
        return self.ledger_key_file or self.keys_path / "ledger.pem"

    @property
    def keys_path(self) -> Path:
        """The folder of keys of datasets and fingerprints. If it is outside data_dir, copies of data_dir lack keys."""
        return self.keys_dir or self.data_dir / "keys"

    @property
    def trusted_proxy_networks(self) -> list[str]:
        """The networks of trusted proxies. IPv4 networks are repeated in the form that dual-stack sockets report."""
        networks = _networks(self.trusted_proxies)
        v4 = [network for network in networks if isinstance(network, IPv4Network)]
        return [str(network) for network in networks] + [
            f"::ffff:{network.network_address}/{96 + network.prefixlen}" for network in v4
        ]

    @property
    def work_path(self) -> Path:
        """The scratch folders of jobs on this machine. They may contain private data."""
        return self.data_dir / "work"

    @property
    def quarantine_path(self) -> Path:
        """The folder of sealed upload bodies that are not yet parsed."""
        return self.data_dir / "quarantine"

    @property
    def logs_path(self) -> Path:
        return self.data_dir / "logs"

    @property
    def extractors_path(self) -> Path:
        """The folder of networks trained on public data, which the operator installs."""
        return self.data_dir / "extractors"

    @property
    def admin_key_path(self) -> Path:
        return admin_key_path(self.data_dir)


def _networks(listed: str) -> list[IPv4Network | IPv6Network]:
    # Reject `*`: if every address were a trusted proxy, any client could claim any address.
    try:
        return [ip_network(each.strip()) for each in listed.split(",") if each.strip()]
    except ValueError as error:
        raise ValueError(
            f"trusted_proxies must be addresses and networks like 10.0.0.0/8, separated by commas: {error}"
        ) from None
