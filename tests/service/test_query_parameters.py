"""Whatever a query says, no page and no list of the API answers with a server error.

Every route is also asked with the parameters of all others: somebody takes the address of one list and puts another's
filter behind it.
"""

from pathlib import Path

import pytest

from service.settings import Settings
from tests.service.reading_routes import address, reading_routes, stocked

ODD = ("", "datalens", "\0", "\u202e'%", "-1", "9" * 30, "x" * 9000)


@pytest.mark.slow
def test_no_query_meets_a_server_error(database_url: str, tmp_path: Path) -> None:
    routes = reading_routes()
    assert {"/datasets", "/jobs", "/releases", "/v1/jobs", "/v1/datasets"} <= set(routes)
    names = set[str]().union(*routes.values())
    assert {"recipe", "state", "account", "q", "before", "cursor", "limit"} <= names
    broken: list[object] = []
    asked = 0
    with stocked(Settings(data_dir=tmp_path / "data", database_url=database_url, mode="celery")) as (client, ids):
        for path, own in routes.items():
            sent = [{name: value} for name in own for value in ODD]
            # What a route does not know is ignored or refused, whatever it says and whichever database there is: one
            # ordinary value tells, and the API refuses all together.
            foreign = dict.fromkeys(names - own, "datalens") if database_url.startswith("sqlite") else {}
            sent += [foreign] if path.startswith("/v1/") else [{name: value} for name, value in foreign.items()]
            for parameters in sent:
                answer = client.get(address(path, ids), params=parameters)
                asked += 1
                if answer.status_code >= 500:
                    broken.append((path, parameters, answer.status_code))
        assert not broken
        assert asked > 200
        assert client.get("/datasets").status_code == client.get("/v1/datasets").status_code == 200
        for path, foreign in (("/datasets", "recipe"), ("/releases", "state"), ("/jobs", "q")):
            refused = client.get(path, params={foreign: "datalens"})
            assert refused.status_code == 422
            assert f"cannot be filtered by {foreign}" in refused.text
