"""The real DataLens recipe on real digits, from the accepted job to downloaded samples, through the dispatcher."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from service import jobs, queue
from service.artifacts import digest_directory
from service.db.session import transaction
from service.db.words import JobState
from workers.supervise.dispatch import Dispatcher
from workers.supervise.supervisor import Patience


@pytest.mark.parametrize("kind", ["workshop", pytest.param("postgres_workshop", marks=pytest.mark.services)])
def test_a_job_becomes_a_release_and_the_release_becomes_images(
    request: pytest.FixtureRequest, kind: str, impatient: Patience
) -> None:
    workshop: Any = request.getfixturevalue(kind)
    evaluate = kind == "workshop"
    job_id = workshop.train(epsilon=7.0, evaluate=evaluate, evaluation_samples=1500)
    dispatcher = Dispatcher(workshop.settings, workshop.factory, patience=impatient)
    dispatcher.start()
    try:
        workshop.wait_for_end(job_id)
        workshop.assert_settled(job_id, JobState.SUCCEEDED)
        with transaction(workshop.factory, read_only=True) as session:
            release = jobs.get_release(session, workshop.job(job_id).release_id)
        assert digest_directory(workshop.settings.data_dir / release.artifact_dir) == release.artifact_sha256
        assert release.card["epsilon"] <= 7.0
        if not evaluate:
            return
        # The evaluation follows by itself. Meanwhile images are drawn.
        first, second = (workshop.sample(release.id, count=30, seed=11) for _ in range(2))
        queue.deliver(workshop.factory, dispatcher.send, now=datetime.now(UTC))
        assert {workshop.wait_for_end(sample).state for sample in (first, second)} == {JobState.SUCCEEDED}
        assert workshop.wait_for_end(workshop.evaluation(release.id).job_id).state is JobState.SUCCEEDED
        accuracy = workshop.evaluation(release.id).results["accuracy"]
        assert set(accuracy) == {"logistic_regression", "mlp", "cnn"}
        assert accuracy["cnn"] > 0.3, accuracy  # ten classes: chance is 0.1
        assert digest_directory(workshop.settings.data_dir / release.artifact_dir) == release.artifact_sha256
    finally:
        dispatcher.stop()
    with transaction(workshop.factory, read_only=True) as session:
        samples = [jobs.sample_of(session, sample) for sample in (first, second)]
    assert samples[0].sha256 == samples[1].sha256
    with np.load(workshop.settings.data_dir / samples[0].path, allow_pickle=False) as arrays:
        assert arrays["images"].shape == (30, 8, 8)
        assert arrays["labels"].tolist() == [*range(10)] * 3
    assert workshop.balance().spent_nano == workshop.hold(job_id).captured_nano
