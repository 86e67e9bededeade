"""What `obscura up` tells the person who starts it."""

import os
import pty
import signal
import subprocess
import sys
import time

from tests.service.cli.conftest import START_SECONDS, environment


def test_the_link_leads_to_the_public_address_and_an_open_dashboard_is_named(tmp_path):
    changes = {"OBSCURA_PUBLIC_URL": "https://obscura.example", "OBSCURA_DASHBOARD_PUBLIC": "true"}
    command = [sys.executable, "-m", "service.cli", "--data-dir", str(tmp_path / "data"), "up", "--port", "0"]
    reading, terminal = pty.openpty()  # a link that signs in is for a person's eyes: it goes to no log
    process = subprocess.Popen(command, env=environment(**changes), stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    said, deadline = "", time.monotonic() + START_SECONDS
    try:
        while "WITHOUT A KEY" not in said:
            assert time.monotonic() < deadline, said
            said += os.read(reading, 4096).decode()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
        os.close(reading)
    assert "https://obscura.example/sign-in/" in said
    assert "dashboard_open_to_everybody" in said
