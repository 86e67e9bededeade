"""The default recipe on real digits, from the accepted job to downloaded samples, through the dispatcher."""

from datetime import UTC, datetime

import numpy as np

from obscura.wire.words import JobState
from service import jobs, queue
from service.db.job_tables import Sample
from service.storage.files import digest_directory
from workers.supervise.dispatch import Dispatcher


def test_a_job_becomes_a_release_and_the_release_becomes_images(workshop, impatient, warm):
    job_id = workshop.train(recipe="moments", epsilon=7.0, evaluate=True, evaluation_samples=1500)
    command = (warm, "-m", "workers.train.runner")
    dispatcher = Dispatcher(workshop.settings, workshop.factory, command=command, patience=impatient)
    dispatcher.start()
    try:
        workshop.wait_for_end(job_id)
        workshop.assert_settled(job_id, JobState.SUCCEEDED)
        release = workshop.release_of(job_id)
        assert digest_directory(workshop.settings.data_dir / release.artifact_dir) == release.artifact_sha256
        assert release.card["epsilon"] <= 7.0
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
    samples = [workshop.do(jobs.made_by, Sample, sample) for sample in (first, second)]
    assert samples[0].sha256 == samples[1].sha256
    with np.load(workshop.settings.data_dir / samples[0].path, allow_pickle=False) as arrays:
        assert arrays["images"].shape == (30, 8, 8)
        assert arrays["labels"].tolist() == [*range(10)] * 3
    assert workshop.balance().spent_nano == workshop.hold(job_id).captured_nano
