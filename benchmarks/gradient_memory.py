"""Memory of per-sample gradients: DP-SGD with explicit ones beside RGP, on a wide residual network.

Run `python -m benchmarks.gradient_memory --json FILE`. Nothing is worked out from shapes: a dispatch mode watches every
tensor that torch makes and adds up the storages that are alive. Two figures for each way, both over what the trace of
the pass holds already:

- per-sample gradients: what stays when every record's gradient of every parameter (DP-SGD) or of every carrier (RGP)
  has been made, before clipping;
- peak: the most that is alive while the estimator takes a micro-batch in, with clipping, sums and passing tensors.
"""

from __future__ import annotations

from benchmarks.gradient_bytes import measure, network
from benchmarks.results import machine, parser_of, show, write_json

RANK = 8
BATCH = 8


def main() -> None:
    """Measure, print a table and, where asked, keep it as JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--batch", type=int, default=BATCH)
    options = parser.parse_args()
    model = network()
    found = measure(model, options.batch, RANK)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    ratios = {f"rgp_over_dpsgd_{key}": found["rgp"][key] / found["dpsgd"][key] for key in found["rgp"]}
    show([{"estimator": name, **figures} for name, figures in found.items()], ("estimator", *found["rgp"]))
    print(", ".join(f"{name} {value:.4f}" for name, value in ratios.items()))
    facts = {"network": "WRN28-4, 32x32x3", "parameters": parameters, "batch": options.batch, "rank": RANK}
    write_json(options.json, machine() | facts | found | ratios)


if __name__ == "__main__":
    main()
