"""Representations of resources: one line in a console, a table and images in a notebook."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from pydantic import BaseModel

FACTS_IN_LINE = 3
COLOURS = {"spent": "#b3261e", "reserved": "#e0a100", "job": "#3a5fcd"}
ENLARGED_TO = 64  # pixels of a side, at least; smaller images are enlarged by a whole factor


class Displayed(BaseModel):
    """A record that shows itself. `_facts` returns its main facts, most important first; all text is escaped."""

    def _facts(self) -> Mapping[str, str]:
        return {name: str(getattr(self, name)) for name in ("state", "recipe", "verdict") if getattr(self, name, None)}

    def _picture(self) -> str:
        """Return HTML above the facts."""
        return ""

    def _names(self) -> list[str]:
        """Return the name and the id, or the one that there is."""
        return [str(getattr(self, each)) for each in ("name", "id") if hasattr(self, each)]

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {' '.join(self._names())}: {', '.join([*self._facts().values()][:FACTS_IN_LINE])}>"
        )

    __str__ = __repr__

    def __dir__(self) -> list[str]:
        """List fields and methods without those of pydantic, for completion."""
        return sorted({*super().__dir__()} - {*dir(BaseModel)} | type(self).model_fields.keys())

    def _repr_html_(self) -> str:
        return f"<h4>{escape(self._names()[0])}</h4>{self._picture()}{table([self._facts()], upright=True)}"


def table(rows: Iterable[Mapping[str, str]], *, upright: bool = False) -> str:
    """Return rows as an HTML table, with one column for each key; or one row for each key, if `upright`."""
    listed = [*rows]
    heads = [*dict.fromkeys(name for row in listed for name in row)]
    lines = [[f"<th>{escape(name)}</th>" for name in heads]]
    lines += [[f"<td>{escape(row.get(name, ''))}</td>" for name in heads] for row in listed]
    shown = zip(*lines, strict=True) if upright else lines
    return "<table>" + "".join(f"<tr>{''.join(cells)}</tr>" for cells in shown) + "</table>"


def bar(**parts: float) -> str:
    """Return the budget as a horizontal bar; `parts` are `spent`, `reserved` and `job`, each a share of the width."""
    filled = "".join(
        f'<span title="{name}" style="display:inline-block;height:100%;width:{100 * share:.2f}%;'
        f'background:{COLOURS[name]}"></span>'
        for name, share in parts.items()
    )
    return f'<div style="height:12px;max-width:400px;background:#d7e3d4">{filled}</div>'


def picture(image: Image.Image | bytes, alt: str) -> str:
    """Return an image, or the content of a PNG file, as an HTML element."""
    if isinstance(image, Image.Image):
        file = io.BytesIO()
        image.save(file, "PNG", optimize=True)
        image = file.getvalue()
    data = base64.b64encode(image).decode("ascii")
    return f'<img alt="{escape(alt)}" src="data:image/png;base64,{data}">'


def grid(pixels: np.ndarray[Any, np.dtype[np.uint8]], labels: np.ndarray[Any, Any], per_class: int) -> Image.Image:
    """Return one row of up to `per_class` images for each label, in the order of the labels."""
    rows = []
    for label in np.unique(labels):
        images = pixels[labels == label][:per_class]
        margins = [(0, per_class - len(images)), (0, 1), (0, 1), (0, 0)][: pixels.ndim]
        rows.append(np.concatenate([*np.pad(images, margins, constant_values=255)], axis=1))
    image = Image.fromarray(np.concatenate(rows))
    return ImageOps.scale(image, max(1, ENLARGED_TO // max(pixels.shape[1:3])), Image.Resampling.NEAREST)
