"""Speed and memory of the stacked teacher ensemble against one module at a time.

Run `python -m benchmarks.teacher_ensemble --json FILE`. A training step (Adam update on a real shard and a synthetic
batch, then the gradients of all images) is timed both ways in turn, on one thread, after a check that both give the
same weights and gradients. Peak memory is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.results import Row, machine, parser_of, show, write_json
from models.shards import Shards
from models.teacher_ensemble import TeacherConfig, TeacherEnsemble

GIB = 2**30
RECORDS_PER_TEACHER = 15  # 60,000 records for 4,000 teachers


class Teacher(nn.Module):
    """One teacher as one would write it: a conditional discriminator of flat images."""

    def __init__(self, config: TeacherConfig) -> None:
        super().__init__()
        self.config = config
        self.first = nn.Linear(config.columns, config.hidden, bias=False)
        self.head = nn.Linear(config.hidden, 1)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return logits (rows,) of images (rows, d) with labels (rows,)."""
        one_hot = nn.functional.one_hot(labels, self.config.classes).to(images.dtype)
        hidden = self.first(torch.cat([images, one_hot], dim=1))
        return self.head(nn.functional.leaky_relu(hidden, self.config.negative_slope)).squeeze(1)


class ModuleLoop:
    """The same teachers as modules, each with its own torch Adam, updated one after the other."""

    def __init__(self, ensemble: TeacherEnsemble) -> None:
        c = ensemble.config
        self.modules, self.optimizers = [], []
        for i in range(ensemble.teachers):
            module = Teacher(c).to(ensemble.device)
            with torch.no_grad():
                module.first.weight.copy_(ensemble.first[i])
                module.head.weight.copy_(ensemble.head[i : i + 1])
                module.head.bias.copy_(ensemble.bias[i : i + 1])
            self.modules.append(module)
            self.optimizers.append(torch.optim.Adam(module.parameters(), lr=c.learning_rate, betas=c.betas))

    def step(self, shards: list[tuple[torch.Tensor, torch.Tensor]], fake: torch.Tensor, labels: torch.Tensor) -> None:
        """Update every teacher once."""
        bce = nn.functional.binary_cross_entropy_with_logits
        for module, optimizer, (real, real_labels) in zip(self.modules, self.optimizers, shards, strict=True):
            optimizer.zero_grad()
            on_real, on_fake = module(real.float() / 255, real_labels), module(fake, labels)
            loss = bce(on_real, torch.ones_like(on_real)) + bce(on_fake, torch.zeros_like(on_fake))
            loss.backward()
            optimizer.step()

    def gradients(self, fake: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        """Return d log D_i / d x_j, (m, d) for each teacher."""
        found = []
        for module in self.modules:
            images = fake.detach().clone().requires_grad_()
            log_d = nn.functional.logsigmoid(module(images, labels)).sum()
            found.append(torch.autograd.grad(log_d, images)[0])
        return found


def build(
    teachers: int, images: int, inputs: int, hidden: int, device: str
) -> tuple[TeacherEnsemble, Shards, list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor, torch.Tensor]:
    """Make an ensemble, its shards (padded and as a list) and a synthetic batch."""
    generator = torch.Generator().manual_seed(0)
    config = TeacherConfig(inputs=inputs, classes=10, hidden=hidden)
    source = torch.Generator(device).manual_seed(1)
    ensemble = TeacherEnsemble(config, teachers, generator=source, device=device)
    count = teachers * RECORDS_PER_TEACHER
    records = torch.randint(0, 256, (count, inputs), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    members = np.split(np.random.default_rng(2).permutation(count), teachers)
    shards = Shards(records, labels, members, device=device)
    listed = [(records[m].to(device), labels[m].to(device)) for m in map(torch.from_numpy, members)]
    fake = torch.rand(images, inputs, generator=generator).to(device)
    return ensemble, shards, listed, fake, (torch.arange(images) % 10).to(device)


def seconds_of(action: Callable[[], object], device: str) -> tuple[float, float]:
    """Return wall time and processor time of `action`; the latter does not count waiting for a busy machine."""
    if device == "cuda":
        torch.cuda.synchronize()
    wall, processor = time.perf_counter(), time.process_time()
    action()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - processor


def median_seconds(times: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the medians of wall and processor times."""
    wall, processor = zip(*times, strict=True)
    return statistics.median(wall), statistics.median(processor)


def resident_bytes(field: str) -> int:
    """Read VmRSS (now) or VmHWM (peak) of this process from Linux.

    `ru_maxrss` will not do: a child starts with its parent's peak, which hides whatever the child adds below it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


def drain(ensemble: TeacherEnsemble, fake: torch.Tensor, labels: torch.Tensor) -> None:
    """Compute all image gradients and let them go block by block, as the vote counter does."""
    for _ in ensemble.image_gradients(fake, labels):
        pass


def compare(teachers: int, images: int, inputs: int, hidden: int, device: str, repeats: int) -> Row:
    """Time one training step both ways and check that they compute the same up to rounding."""
    ensemble, shards, listed, fake, labels = build(teachers, images, inputs, hidden, device)
    generator = torch.Generator().manual_seed(3)
    loop = ModuleLoop(ensemble)

    def stacked_step() -> None:
        ensemble.update(shards.batch(RECORDS_PER_TEACHER, generator), fake, labels)
        drain(ensemble, fake, labels)

    def looped_step() -> None:
        loop.step(listed, fake, labels)
        loop.gradients(fake, labels)

    ensemble.update(shards.batch(RECORDS_PER_TEACHER, generator), fake, labels)
    loop.step(listed, fake, labels)
    stacked = torch.cat([g for _, g in ensemble.image_gradients(fake, labels)])  # (N, m, d)
    looped = torch.stack(loop.gradients(fake, labels))  # (N, m, d)
    weights = torch.stack([module.first.weight.detach() for module in loop.modules])
    apart = (ensemble.first.detach() - weights).abs()
    assert float((stacked - looped).norm() / looped.norm()) < 1e-2, "image gradients differ"
    assert float(apart.max()) < 2 * ensemble.config.learning_rate, "weights differ"
    assert float(apart.mean()) < 1e-2 * ensemble.config.learning_rate, "weights differ on average"
    del stacked, looped, weights, apart
    stacked_times, looped_times = [], []
    for _ in range(repeats):  # in turn, so that other load meets both ways
        stacked_times += [seconds_of(stacked_step, device) for _ in range(5)]
        looped_times.append(seconds_of(looped_step, device))
    (fast, fast_cpu), (slow, slow_cpu) = median_seconds(stacked_times), median_seconds(looped_times)
    return {
        "speedup": slow / fast,
        "speedup_cpu": slow_cpu / fast_cpu,
        "seconds_stacked": fast,
        "seconds_modules": slow,
    }


def memory(teachers: int, images: int, inputs: int, hidden: int, device: str) -> Row:
    """Measure what an ensemble adds to this process while it trains; call in a fresh process.

    On a CPU: the peak of the resident set over the resident set just before, with libraries warmed up and the records
    in place. On CUDA: the allocator's peak.
    """
    small, few, _, fake, labels = build(8, images, inputs, hidden, device)
    small.update(few.batch(RECORDS_PER_TEACHER, torch.Generator().manual_seed(0)), fake, labels)
    drain(small, fake, labels)
    generator = torch.Generator().manual_seed(0)
    count = teachers * RECORDS_PER_TEACHER
    records = torch.randint(0, 256, (count, inputs), dtype=torch.uint8, generator=generator)
    members = np.split(np.arange(count), teachers)
    shards = Shards(records, torch.arange(count) % 10, members, device=device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = resident_bytes("VmRSS")
    ensemble = TeacherEnsemble(small.config, teachers, generator=torch.Generator(device).manual_seed(1), device=device)
    for _ in range(4):
        ensemble.update(shards.batch(RECORDS_PER_TEACHER, generator), fake, labels)
        drain(ensemble, fake, labels)
    peak = (torch.cuda.max_memory_allocated() if device == "cuda" else resident_bytes("VmHWM")) - before
    # Small ensembles may partly live in pages that the allocator had kept, hence not the full four copies.
    assert peak >= 3 * ensemble.parameter_bytes, f"a peak of {peak} bytes cannot hold the ensemble"
    return {"peak_bytes": peak, "allowed_bytes": 4 * ensemble.parameter_bytes + GIB}


SHAPES = (("80 inputs", 80, 16), ("pixels, 16 hidden units", 784, 16), ("pixels, 32 hidden units", 784, 32))


def main() -> None:
    """Measure every shape of teacher, print a table and, where asked, keep it as JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--teachers", type=int, default=1000, help="size of the ensemble that is compared")
    parser.add_argument("--images", type=int, default=20, help="synthetic images per iteration (the paper's m)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory-of", nargs=4, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        print(json.dumps(memory(*options.memory_of, options.device)))
        return
    rows = []
    for name, inputs, hidden in SHAPES:
        row = compare(options.teachers, options.images, inputs, hidden, options.device, options.repeats)
        for teachers in sorted({options.teachers, 4000}):
            sizes = [str(size) for size in (teachers, options.images, inputs, hidden)]
            command = [sys.executable, "-m", "benchmarks.teacher_ensemble", "--memory-of", *sizes]
            done = subprocess.run([*command, "--device", options.device], check=True, capture_output=True, text=True)
            row |= {f"{key}_{teachers}": value for key, value in json.loads(done.stdout).items()}
        rows.append({"teacher": name, **row})
    show(rows, ("teacher", "speedup:.1f", "speedup_cpu:.1f", "peak_bytes_4000", "allowed_bytes_4000"))
    write_json(options.json, machine() | {"teachers": options.teachers, "device": options.device, "rows": rows})


if __name__ == "__main__":
    main()
