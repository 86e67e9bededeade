"""The inputs, one file for each kind; each has a tuple `INPUTS`. A new file is found by itself."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from benchmarks.intake.inputs import Input


def all_inputs() -> dict[str, tuple[Input, ...]]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: import_module(f"{__name__}.{name}").INPUTS for name in names}
