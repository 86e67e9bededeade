"""What `obscura up` tells the person who starts it."""

import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

from obscura.client.local_service import running_at
from service.db.base import new_id
from service.storage.interface import key_of
from tests.service.cli.conftest import START_SECONDS, Shell, environment

MARK = "ins_" + "a" * 20


def test_the_link_leads_to_the_public_address_and_an_open_dashboard_is_named(tmp_path, warm):
    changes = {"OBSCURA_PUBLIC_URL": "https://obscura.example", "OBSCURA_DASHBOARD_PUBLIC": "true"}
    command = [warm, "-m", "obscura.cli", "--data-dir", str(tmp_path / "data"), "up", "--port", "0"]
    reading, terminal = pty.openpty()  # a link that signs in is for a person's eyes: it goes to no log
    process = subprocess.Popen(command, env=environment(**changes), stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    said, deadline = "", time.monotonic() + START_SECONDS
    try:
        while not re.search(r"/sign-in/[0-9a-f]+\r\n", said):
            assert time.monotonic() < deadline, said
            said += os.read(reading, 4096).decode()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        os.close(reading)
    lines = said.split("\r\n")
    assert "https://obscura.example/sign-in/" in "".join(lines[-3:]), "the link is last, where no log line moves it"
    assert "open a second terminal" in said
    assert "WITHOUT A KEY" in said
    assert re.search(r"\d\d:\d\d:\d\d warning dashboard_open_to_everybody", said)
    assert not re.search("alembic|Running upgrade|Uvicorn", said)


def test_up_says_what_is_wrong_and_what_to_do_and_removes_nothing(tmp_path: Path, warm: str) -> None:
    data_dir = tmp_path / "service"
    release = data_dir / key_of(new_id("rel"))
    release.mkdir(parents=True, mode=0o700)
    (data_dir / "installation").write_text(f"{MARK}\n")
    (data_dir / "admin.key").write_text("what its database knows\n")
    command = [warm, "-m", "obscura.cli", "--data-dir", str(data_dir), "up", "--port", "0"]
    said = tmp_path / "said.txt"
    with open(said, "w") as file:
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=file)
        try:
            deadline = time.monotonic() + START_SECONDS
            while running_at(data_dir) is None:
                assert process.poll() is None, said.read_text()
                assert time.monotonic() < deadline, said.read_text()
                time.sleep(0.1)
            status = Shell(data_dir, warm)("ledger", "status", "--json").json
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    lines = said.read_text().splitlines()
    told = " ".join(line for line in lines if not line.startswith("{"))  # a narrow terminal breaks lines
    sentence = (
        f"The data folder belongs to installation {MARK}, and the database to none, as one that is new or from before "
        "there were such ids does: start the service with the OBSCURA_DATABASE_URL of that installation; until then "
        "nothing is removed, and no private data is opened."
    )
    assert sentence in " ".join(told.split())
    assert any(line.startswith("{") and sentence in line and '"trainings_stopped"' in line for line in lines)
    assert status["trainings"] == "stopped"
    assert [(stop["account_id"], stop["code"]) for stop in status["stops"]] == [(None, "installation_mismatch")]
    assert release.is_dir()
    assert (data_dir / "admin.key").read_text() == "what its database knows\n"
    assert not (data_dir / "keys" / "fingerprints.key").exists()
