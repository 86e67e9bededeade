"""Schemathesis with few examples: no request that it makes from the document meets a 5xx, on either database.

`python -m benchmarks.fuzz_api` sends thousands, as every caller.
"""

import pytest

from benchmarks.api_stock import lay_in
from benchmarks.fuzz_api import STOCK, fuzz, service


@pytest.mark.slow
def test_no_generated_request_meets_a_server_error(database_url, tmp_path):
    with service(database_url, tmp_path) as (url, factory):
        lay_in(factory, tmp_path / "data", **STOCK)
        found = fuzz(url, factory, "admin", tmp_path, examples=5, phases="fuzzing")
    assert found.server_errors == 0, found.said
    assert found.cases > 100
