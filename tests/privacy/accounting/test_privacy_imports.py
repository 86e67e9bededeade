"""The web process computes prices and plans without loading torch."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import privacy.accounting.calibration
import privacy.accounting.certificate
import privacy.aggregation.topagg_config
import privacy.mechanisms.clipping
import privacy.mechanisms.noise
import privacy.mechanisms.partition
assert "torch" not in sys.modules
"""


def test_accounting_and_mechanisms_import_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
