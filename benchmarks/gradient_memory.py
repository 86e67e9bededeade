"""Memory of per-sample gradients: DP-SGD with explicit ones beside RGP, on a wide residual network.

Run `python -m benchmarks.gradient_memory --json FILE`. Nothing is worked out from shapes: a dispatch mode watches every
tensor that torch makes and adds up the storages that are alive. Two figures for each way, both over what the trace of
the pass holds already:

- per-sample gradients: what stays when every record's gradient of every parameter (DP-SGD) or of every carrier (RGP)
  has been made, before clipping;
- peak: the most that is alive while the estimator takes a micro-batch in, with clipping, sums and passing tensors.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.gradient_bytes import measure, network

RANK = 8
BATCH = 8


def document_of(found: Mapping[str, Mapping[str, int]], model: nn.Module, records: int, rank: int) -> dict[str, Any]:
    """Return the figures with what they were measured on."""
    plain, carriers = found["dpsgd"], found["rgp"]
    return {
        "machine": f"{platform.machine()} CPU",
        "torch": torch.__version__,
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip(),
        "network": "WRN28-4, 32x32x3",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "batch": records,
        "rank": rank,
        **{name: dict(figures) for name, figures in found.items()},
        "rgp_over_dpsgd_bytes": carriers["per_sample_bytes"] / plain["per_sample_bytes"],
        "rgp_over_dpsgd_peak_bytes": carriers["peak_bytes"] / plain["peak_bytes"],
    }


def main() -> None:
    """Measure, print a table and, where asked, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--batch", type=int, default=BATCH)
    options = parser.parse_args()
    model = network()
    found = measure(model, options.batch, RANK)
    document = document_of(found, model, options.batch, RANK)
    print(f"{document['network']}, {document['parameters']:,} parameters, {options.batch} records, rank {RANK}")
    print(f"{'':<8}{'per-sample gradients':>24}{'a record':>14}{'peak':>14}")
    for name, figures in found.items():
        kept, peak = figures["per_sample_bytes"] / 2**20, figures["peak_bytes"] / 2**20
        print(f"{name:<8}{kept:>20.1f} MiB{kept / options.batch:>10.2f} MiB{peak:>10.1f} MiB")
    print(f"RGP / DP-SGD: {document['rgp_over_dpsgd_bytes']:.4f} (peak {document['rgp_over_dpsgd_peak_bytes']:.4f})")
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
