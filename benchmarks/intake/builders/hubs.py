"""Files of hubs and tools: Parquet and Arrow as Hugging Face has them, and WebDataset."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.intake.builders.archives import add, png
from benchmarks.intake.inputs import COUNT, WORDS, step


@step
def parquet(
    folder: Path,
    rng: np.random.Generator,
    files: Sequence[str] = ("a.parquet",),
    *,
    names: Sequence[str] | None = WORDS,
    labels: Sequence[Any] | None = None,
    image: str = "image",
    **columns: Any,
) -> None:
    """Write tables with images: Parquet, or Arrow files (.arrow) or streams (.arrows, which are called .arrow, too).

    With `names`, the schema of Hugging Face names the classes. Of further columns, a text is repeated, and a number
    counts rows in groups of so many.
    """
    import pyarrow
    from pyarrow import parquet as parquets

    for path in files:
        place = folder / path.replace(".arrows", ".arrow")
        place.parent.mkdir(parents=True, exist_ok=True)
        pictures = [{"bytes": png(rng), "path": f"{number}.png"} for number in range(COUNT)]
        more: dict[str, list[Any]] = {}
        for name, value in columns.items():
            more[name] = [value.encode()] * COUNT if isinstance(value, str) else [n // value for n in range(COUNT)]
        values = [number % 2 for number in range(COUNT)] if labels is None else list(labels)
        table = pyarrow.table({image: pictures, "label": values, **more})
        if names is not None:
            features = {image: {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        if path.endswith(".parquet"):
            parquets.write_table(table, place)
            continue
        with (pyarrow.ipc.new_stream if path.endswith("s") else pyarrow.ipc.new_file)(place, table.schema) as stream:
            stream.write_table(table)


@step
def webdataset(
    folder: Path,
    rng: np.random.Generator,
    name: str,
    ending: str,
    content: str,
    classes: Sequence[str] | None = None,
) -> None:
    """Write a tar of images, each with a file whose content may name {n}, {odd}, {half} and {word}."""
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    with tarfile.open(place, "w:gz" if name.endswith("gz") else "w") as archive:
        if classes is not None:
            add(archive, "__classes.json__", json.dumps(classes).encode())
        for n in range(COUNT):
            text = content
            for key, value in {"n": n, "odd": n % 2, "half": n // 2, "word": WORDS[n % 2]}.items():
                text = text.replace(f"{{{key}}}", str(value))
            add(archive, f"{n:06d}.png", png(rng))
            add(archive, f"{n:06d}.{ending}", text.encode())
