"""Call a hook between a network's layers, so that a computation of minutes can be stopped within seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def between_layers(modules: Iterable[nn.Module], look: Callable[[], object]) -> Iterator[None]:
    """Call `look` before each layer of a network computes.

    Args:
        modules: the network and all its parts, as `nn.Module.modules` lists them.
        look: must be fast; an exception from it stops the computation.
    """

    def before(*_: Any) -> None:  # a value that a hook returns would replace the layer's input
        look()

    layers = [module for module in modules if next(module.children(), None) is None]
    handles = [layer.register_forward_pre_hook(before) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
