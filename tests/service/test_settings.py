"""Settings: what is filled in, what is refused, and that they come from the environment."""

import json
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.errors import InvalidInput
from service.main import create_app
from service.settings import Settings


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"OBSCURA_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_default_is_embedded_on_loopback_with_a_file_below_var(tmp_path):
    settings = Settings()
    assert settings.mode == "embedded"
    assert settings.database_url == f"sqlite:///{tmp_path}/var/obscura.db"
    assert settings.dashboard_public is False
    assert settings.admin_key_path == tmp_path / "var" / "admin.key"


def test_settings_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("OBSCURA_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("OBSCURA_MODE", "celery")
    monkeypatch.setenv("OBSCURA_HOST", "0.0.0.0")
    monkeypatch.setenv("OBSCURA_PAGE_SIZE_MAX", "10")
    settings = Settings()
    assert (settings.mode, settings.page_size_max) == ("celery", 10)
    assert settings.database_url == f"sqlite:///{tmp_path}/data/obscura.db"


def test_the_public_url_is_an_origin_and_proxies_are_networks(monkeypatch):
    monkeypatch.setenv("OBSCURA_PUBLIC_URL", "HTTPS://Obscura.Example.org:443/")
    monkeypatch.setenv("OBSCURA_TRUSTED_PROXIES", "172.30.84.1, 2001:db8::/32")
    settings = Settings()
    assert settings.public_url == "https://obscura.example.org"
    assert settings.trusted_proxy_networks == ["172.30.84.1/32", "2001:db8::/32", "::ffff:172.30.84.1/128"]
    for nothing in ("OBSCURA_PUBLIC_URL", "OBSCURA_TRUSTED_PROXIES"):  # as compose passes what .env leaves out
        monkeypatch.setenv(nothing, "")
    assert (Settings().public_url, Settings().trusted_proxy_networks) == ("", [])


WRONG = [{"mode": "threads"}, {"port": 70_000}, {"page_size_max": 0}, {"attempts_max": 0}]
WRONG += [{"processes": -1}, {"processes": 65}, {"lease_seconds": 0}, {"lease_seconds": 20, "heartbeat_seconds": 15}]
WRONG += [{"public_url": url} for url in ("obscura.example.org", "https://obscura.example.org/path")]
WRONG += [{"trusted_proxies": listed} for listed in ("*", "10.0.0.1, proxy.local", "10.0.0.1/8")]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_cannot_work_is_refused(wrong):
    with pytest.raises(ValidationError):
        Settings(**wrong)  # type: ignore[arg-type]


OIDC = {
    "oidc_issuer": "https://provider.example.org/realm",
    "oidc_client_id": "obscura",
    "oidc_client_secret": "a secret",
    "oidc_groups": {"lab": {"prj_default": "analyst"}},
    "public_url": "https://obscura.example.org",
}


def test_a_sign_in_provider_comes_from_the_environment_and_its_secret_is_not_shown(monkeypatch):
    for name, value in OIDC.items():
        monkeypatch.setenv(f"OBSCURA_{name.upper()}", json.dumps(value) if isinstance(value, dict) else value)
    settings = Settings()
    assert settings.oidc_groups == {"lab": {"prj_default": "analyst"}}
    assert settings.oidc_client_secret.get_secret_value() == "a secret"
    assert "a secret" not in repr(settings)
    assert Settings(oidc_issuer="http://127.0.0.1:4000").oidc_issuer  # for trying it out on one machine


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"oidc_client_secret": ""}, "OBSCURA_OIDC_CLIENT_SECRET must be set"),
        ({"oidc_client_id": "", "public_url": ""}, "OBSCURA_OIDC_CLIENT_ID and OBSCURA_PUBLIC_URL must be set"),
        ({"oidc_groups": {}}, "signing in gives no role"),
        ({"oidc_groups": {"lab": {"prj_default": "king"}}}, "oidc_groups"),
        ({"oidc_issuer": "http://provider.example.org"}, "https"),
        ({"oidc_issuer": "http://localhost.example.org"}, "https"),
        ({"oidc_confirm_seconds": 41}, "oidc_confirm_seconds"),
    ],
)
def test_half_a_sign_in_provider_is_refused(wrong, said):
    with pytest.raises(ValidationError, match=said):
        Settings(**OIDC | wrong)  # type: ignore[arg-type]


def test_where_authlib_is_missing_the_start_says_what_brings_it(monkeypatch, tmp_path):
    for module in [name for name in sys.modules if name == "service.identity.provider"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "authlib", None)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(InvalidInput, match=r"pip install 'obscura-images-server\[oidc\]'"):
        create_app(Settings(data_dir=tmp_path, **OIDC))  # type: ignore[arg-type]


def test_settings_do_not_change():
    with pytest.raises(ValidationError):
        Settings().port = 1
