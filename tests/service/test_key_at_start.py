"""The key that signs for the ledger is made as the service starts, once; one that cannot be used keeps nobody away."""

import json

from service.audit.signing import open_signing_key
from service.logs import configure_logging
from service.main import create_app
from service.settings import Settings
from tests.service.reading_routes import TestClient


def start(settings: Settings) -> None:
    app = create_app(settings, send=lambda _name, _args: None)
    with TestClient(app, base_url="http://127.0.0.1:8420") as client:
        assert client.get("/v1/health/live").status_code == 200


def test_the_first_start_makes_the_key_and_later_ones_keep_it(sqlite_url, tmp_path):
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, mode="celery")
    start(settings)
    made, public = open_signing_key(settings.ledger_key_path), settings.ledger_key_path.with_suffix(".pub.pem")
    assert public.read_text() == made.public_pem()
    public.unlink()
    start(settings)
    assert open_signing_key(settings.ledger_key_path).key_id == made.key_id
    assert public.read_text() == made.public_pem()


def test_a_key_that_cannot_be_used_does_not_keep_the_service_from_starting(sqlite_url, tmp_path, capfd):
    path = tmp_path / "ledger.pem"
    path.write_bytes(b"nothing")
    configure_logging("INFO")
    start(Settings(data_dir=tmp_path / "data", database_url=sqlite_url, mode="celery", ledger_key_file=path))
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "ledger_not_signed" in line]
    assert "cannot be read" in said[0]["reason"]
    assert path.read_bytes() == b"nothing"
