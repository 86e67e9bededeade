"""A service that is stopped in order: its training waits for the next start, and nothing is lost."""

import os
import signal
import subprocess

from obscura.wire.words import HoldState, JobState
from tests.workers.conftest import build
from workers.supervise.supervisor import runner_environment


def test_a_service_told_to_stop_queues_its_training_again(sqlite_url, tmp_path, monkeypatch, warm):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shop = build(tmp_path / "var", sqlite_url)
    job_id = shop.train(images=8000, images_per_iteration=2)
    settings = shop.settings.model_copy(update={"lease_seconds": 60, "port": 0, "attempts_max": 1})
    command = [warm, "-m", "obscura.cli", "up"]
    with (tmp_path / "log").open("wb") as log:
        service = subprocess.Popen(command, env=runner_environment(settings, os.environ), stdout=log, stderr=log)
        try:
            shop.wait(lambda: shop.job(job_id).progress.get("stage") == "votes", seconds=300)
            service.send_signal(signal.SIGTERM)
            assert service.wait(timeout=300) == 0
        finally:
            service.kill()
            service.wait()
    job, hold = shop.job(job_id), shop.hold(job_id)
    # Were this an attempt lost, it would have been the last one.
    assert (job.state, job.attempt, job.attempts_lost) == (JobState.QUEUED, 1, 0)
    assert (hold.state, shop.balance().reserved_nano) == (HoldState.ARMED, hold.amount_nano)
    assert 0 < hold.charged_nano < hold.amount_nano
    assert shop.claim(job_id).number == 2
    shop.factory.kw["bind"].dispose()
