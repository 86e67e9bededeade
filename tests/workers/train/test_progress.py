"""What a runner says: the time left, never negative or unfounded, and errors without their values."""

import json
import subprocess
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.logs import get_logger
from tests.workers.small_trainings import FACTS, plan_of
from workers.recipes.interface import Piece
from workers.train.drawing import drawing_work
from workers.train.measuring import evaluation_work
from workers.train.process import trace_of
from workers.train.progress import Place, find_place, seconds_left, work_done

PIECES = (Piece("features", 118, 60.0), Piece("steps", 300, 30.0), Piece("draw", 100, 1.0), Piece("draw", 2000, 9.0))
WHOLE = sum(piece.work for piece in PIECES)


def estimates(pieces: tuple[Piece, ...], pace: Any) -> list[int | None]:
    """What is shown at every step of a job whose pieces take `pace(index) * work` seconds."""
    seconds, place, first, shown = 0.0, None, None, []
    left: int | None = None
    for index, piece in enumerate(pieces):
        for step in range(piece.steps + 1):
            place = find_place(pieces, place, piece.stage, step, piece.steps)
            assert place == Place(index, step)
            first = first or place
            left = seconds_left(pieces, first, place, int(seconds), left)
            shown.append(left)
            seconds += pace(index) * piece.work / piece.steps if step < piece.steps else 0.0
    return shown


@pytest.mark.parametrize("slowness", [0.3, 1.0, 40.0])
def test_it_falls_from_piece_to_piece_and_ends_at_nothing(slowness):
    shown = [value for value in estimates(PIECES, lambda _: slowness) if value is not None]
    assert all(later <= earlier for earlier, later in pairwise(shown))
    assert shown[-1] == 0
    assert shown[0] == pytest.approx(slowness * WHOLE, rel=0.2, abs=60)


def test_uneven_pace_is_not_shown_but_a_wrong_weight_is_mended():
    """The second piece takes four times as long as was thought."""
    shown = [value for value in estimates(PIECES, lambda index: 4.0 if index == 1 else 1.0) if value is not None]
    rises = [(earlier, later) for earlier, later in pairwise(shown) if later > earlier]
    assert all(later > 1.5 * earlier for earlier, later in rises)
    assert len(rises) <= 2
    assert shown[-1] == 0


def test_nothing_is_said_while_nothing_is_known():
    start = Place(0, 0)
    assert seconds_left(PIECES, start, start, 100) is None
    assert seconds_left(PIECES, start, Place(0, 5), 4) is None
    assert seconds_left(PIECES, start, Place(0, 59), 30) == 75  # 70 more, said coarsely
    assert find_place(PIECES, None, "another stage", 0, 1) is None
    assert find_place((), None, "draw", 0, 100) is None


def test_an_attempt_that_goes_on_from_a_checkpoint_counts_its_own_time():
    resumed = find_place(PIECES, None, "steps", 100, 300)
    assert resumed == Place(1, 100)
    assert work_done(PIECES, resumed) == 70.0
    assert seconds_left(PIECES, resumed, Place(1, 200), 10) == 20


def test_pieces_of_one_name_are_told_apart():
    twice = (Piece("draw", 10, 1.0), Piece("evaluate", 100, 9.0)) * 2
    place = None
    for index, (stage, steps) in enumerate([("draw", 10), ("evaluate", 100)] * 2):
        for step in (0, steps // 2, steps):
            place = find_place(twice, place, stage, step, steps)
            assert place == Place(index, step)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1e6)), min_size=1, max_size=4),
    st.integers(0, 3), st.integers(0, 60), st.integers(0, 10**7), st.none() | st.integers(0, 10**6),
)  # fmt: skip
def test_it_is_never_negative(sizes, piece, step, elapsed, before):
    pieces = tuple(Piece(f"stage {n}", steps, work) for n, (steps, work) in enumerate(sizes))
    index = min(piece, len(pieces) - 1)
    left = seconds_left(pieces, Place(0, 0), Place(index, min(step, pieces[index].steps)), elapsed, before)
    assert left is None or left >= 0


def test_an_evaluation_counts_the_warm_start_too():
    plan = plan_of("moments", {"guide": True, "guide_steps": 1})
    once = drawing_work(plan, FACTS, 500)
    whole = evaluation_work(plan, FACTS, 500, 300, None)
    assert [piece.steps for piece in whole] == [500, 500, 100, 100]
    assert once.work < whole[2].work
    kept = evaluation_work(plan, FACTS, 500, 300, 0.9)  # the reference is there already
    assert whole[:2] + whole[3:] == kept[:2] + kept[3:]
    assert kept[2].work < whole[2].work < evaluation_work(plan, FACTS, 5000, 300, None)[2].work
    assert len(evaluation_work(plan_of("dpgan", {}), FACTS, 500, 300, None)) == 3


# --- errors -----------------------------------------------------------------------------------------------------------


BROKEN = """
from workers.train.process import keep_values_out
keep_values_out()

def read(record):
    raise ValueError(f"CANARY {record}")

def train():
    try:
        read(7)
    except ValueError as error:
        raise RuntimeError("CANARY in a message") from error

train()
"""


def test_a_process_that_dies_says_files_lines_and_functions_and_no_values(warm):
    told = subprocess.run([warm, "-c", BROKEN], capture_output=True, text=True, check=False).stderr
    lines = BROKEN.splitlines()
    for function, line in (("read", 'raise ValueError(f"CANARY {record}")'), ("train", "read(7)")):
        number = next(n for n, text in enumerate(lines, 1) if text.strip() == line)
        assert f'File "<string>", line {number}, in {function}' in told
    assert "CANARY 7" not in told
    assert told.index("ValueError") < told.index("led to") < told.index("RuntimeError")


def test_a_long_trace_in_the_log_keeps_its_innermost_place(stream):
    """One text would be cut at its end, which is where the error arose."""

    def descend(depth: int) -> None:
        if depth == 0:
            raise ValueError("CANARY")
        descend(depth - 1) if depth % 2 else climb(depth)

    def climb(depth: int) -> None:
        descend(depth - 1)

    with pytest.raises(ValueError, match="CANARY") as broken:
        descend(44)
    assert len(trace_of(broken.value)) > 2000
    get_logger("t").error("database_lost", trace=trace_of(broken.value).splitlines())
    told = json.loads(stream.getvalue())["trace"]
    assert told[-1] == "ValueError"
    assert any(__file__ in line and "in descend" in line for line in told[-4:])
