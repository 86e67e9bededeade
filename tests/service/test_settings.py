"""Settings: what is filled in, what is refused, and that they come from the environment."""

from pathlib import Path

import pytest
from pydantic import ValidationError

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
    assert settings.dashboard_public is True
    assert settings.admin_key_path == Path("var/admin.key")


def test_settings_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("OBSCURA_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("OBSCURA_MODE", "celery")
    monkeypatch.setenv("OBSCURA_HOST", "0.0.0.0")
    monkeypatch.setenv("OBSCURA_PAGE_SIZE_MAX", "10")
    settings = Settings()
    assert (settings.mode, settings.page_size_max) == ("celery", 10)
    assert settings.database_url == f"sqlite:///{tmp_path}/data/obscura.db"
    assert settings.dashboard_public is False  # not on loopback, so not for everybody


def test_what_was_set_is_kept():
    settings = Settings(database_url="postgresql+psycopg://db/obscura", dashboard_public=True, host="0.0.0.0")
    assert settings.database_url == "postgresql+psycopg://db/obscura"
    assert settings.dashboard_public is True


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "threads"},
        {"port": 70_000},
        {"lease_seconds": 0},
        {"lease_seconds": 20, "heartbeat_seconds": 15},
        {"page_size_max": 0},
        {"attempts_max": 0},
        {"processes": -1},
        {"processes": 65},
    ],
)
def test_what_cannot_work_is_refused(wrong):
    with pytest.raises(ValidationError):
        Settings(**wrong)  # type: ignore[arg-type]


def test_settings_do_not_change():
    with pytest.raises(ValidationError):
        Settings().port = 1
