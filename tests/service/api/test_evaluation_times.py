"""An evaluation is queued with the publication of its release: what it says of times tells no more than that does."""

import re
from datetime import datetime

from tests.service.test_shown_times import moments


def test_an_automatic_evaluation_tells_the_moment_of_a_publication_to_the_minute(served):
    dataset, measured_on = served.ready_dataset(served.account()["id"]), served.public_like_a_training()
    job = served.train(dataset["id"], evaluation_dataset_id=measured_on).json()
    release = served.publish(job["id"], served.claim(job["id"]))
    (evaluation,) = served.everything(f"releases/{release}/evaluations")
    served.finish_evaluation(evaluation, cnn=0.75)
    account_id = job["account_id"]
    opened = served.read(f"accounts/{account_id}/entries", limit=1)["items"][0]["created_at"]
    entries = served.everything(f"accounts/{account_id}/entries")
    assert entries[-1]["kind"] == "capture"
    assert {entry["created_at"] for entry in entries} <= {opened, *(f"{e['created_at'][:13]}:00:00Z" for e in entries)}
    report = served.client("read").get(f"/v1/releases/{release}/report.json").text
    page = served.client("read").get(f"/v1/releases/{release}/report.html").text
    shown = [
        served.client("read").get(f"/v1/{path}").text
        for path in (f"releases/{release}/evaluations", f"jobs/{evaluation['job_id']}", f"releases/{release}", "jobs")
    ]
    times = [moment for text in (report, page, *shown) for moment in moments(text)]
    assert len(times) > 8
    assert all((moment.second, moment.microsecond) == (0, 0) for moment in times)
    assert re.search(r'"finished_at": ?"\d{4}-', report)
    assert datetime.fromisoformat(opened).microsecond  # so what is exact would be seen
