"""Type checkers see what `import obscura` exports, with every option of `train`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import obscura
service = obscura.connect("http://localhost", "token")
reveal_type(service.train("images", epsilon=1, at_most=2000, size=32))
reveal_type(service.releases.list())
service.train("images", gray=True)

async def main() -> None:
    async with obscura.connect_async("http://localhost", "token") as other:
        reveal_type(await other.train("images", grey=True))
        reveal_type(await other.jobs.create("ds_a", epsilon=1))
        await other.datasets.push("images", at_most="many")
"""
SEEN = (
    'Revealed type is "obscura.client.resources.Release"',
    'Revealed type is "list[obscura.client.resources.Release]"',
    'Unexpected keyword argument "gray" for "train"',
    'Revealed type is "obscura.client.async_resources.AsyncRelease"',
    'Revealed type is "obscura.client.async_resources.AsyncJob"',
    'incompatible type "str"; expected "int | None"',
)


@pytest.mark.slow
def test_a_program_is_checked(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", program]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in ran.stdout.splitlines() if " note: Revealed" in line or " error:" in line]
    assert len(lines) == len(SEEN), ran.stdout + ran.stderr
    assert all(seen in line for seen, line in zip(SEEN, lines, strict=True)), ran.stdout
