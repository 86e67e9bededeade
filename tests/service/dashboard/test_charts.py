"""The chart of an account's spending."""

import re
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from service.dashboard.charts import HEIGHT, WIDTH, spend_chart
from service.views.accounts import SpendPoint


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 0.5), st.floats(0, 0.7)), min_size=1, max_size=30),
    st.integers(0, 100),
)
def test_the_chart_stays_in_its_box(rows, later):
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    points = [SpendPoint(begin + timedelta(seconds=at), spent, held) for at, spent, held in sorted(rows)]
    chart = spend_chart(points, points[-1].at + timedelta(seconds=later))
    if chart is None:
        assert all(point.spent == point.held == 0 for point in points)
        return
    for path in (chart.spent_line, chart.spent_area, chart.held_area):
        for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT
