"""What a runner says of an error: where it arose and of which kind, and none of its values."""

import json
import subprocess

import pytest

from service.logs import get_logger
from workers.train.process import trace_of

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
