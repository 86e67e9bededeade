"""What hubs, tools and Obscura itself hand out: Parquet, what `datasets` saves, WebDataset, ImageFolder, COCO, YOLO."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.intake.inputs import Asked, Build, Input, Read, Refused, grey, numbered, put

COUNT = 12
NAMES = ("normal", "sick")
BOTH = Read(NAMES, COUNT)


def png(rng: np.random.Generator) -> bytes:
    file = io.BytesIO()
    Image.fromarray(grey(rng)).save(file, "PNG")
    return file.getvalue()


def parquet(
    *files: str, names: tuple[str, ...] | None = NAMES, labels: Any = None, image: str = "image", **columns: Any
) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        import pyarrow
        from pyarrow import parquet as files_of

        said = labels if labels is not None else [number % 2 for number in range(COUNT)]
        for path in files:
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            images = [{"bytes": png(rng), "path": f"{number}.png"} for number in range(COUNT)]
            table = pyarrow.table({image: images, "label": said, **columns})
            if names is not None:
                label = {"names": list(names), "_type": "ClassLabel"}
                features = {image: {"_type": "Image"}, "label": label}
                table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
            files_of.write_table(table, place)

    return build


def saved(folder: Path, rng: np.random.Generator) -> None:
    import pyarrow

    for part in ("train", "test"):
        place = folder / part
        place.mkdir()
        features = {"image": {"_type": "Image"}, "label": {"names": list(NAMES), "_type": "ClassLabel"}}
        images = [{"bytes": png(rng), "path": None} for _ in range(COUNT)]
        table = pyarrow.table({"image": images, "label": [number % 2 for number in range(COUNT)]})
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        with pyarrow.ipc.new_stream(place / "data-00000-of-00001.arrow", table.schema) as stream:
            stream.write_table(table)
        (place / "dataset_info.json").write_text(json.dumps({"features": features}))
        (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))


def torn(folder: Path, rng: np.random.Generator) -> None:
    parquet("a.parquet")(folder, rng)
    data = (folder / "a.parquet").read_bytes()
    (folder / "a.parquet").write_bytes(data[: len(data) // 2])


def webdataset(
    name: str, ending: str, content: Callable[[int], str], *, classes: tuple[str, ...] | None = None
) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        with tarfile.open(folder / name, "w:gz" if name.endswith("gz") else "w") as archive:
            members = [] if classes is None else [("__classes.json__", json.dumps(classes).encode())]
            for number in range(COUNT):
                members += [(f"{number:06d}.png", png(rng)), (f"{number:06d}.{ending}", content(number).encode())]
            for path, data in members:
                info = tarfile.TarInfo(path)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))

    return build


def metadata(file: str, lines: Callable[[int], str], head: str = "", folder: str = "") -> Build:
    def build(place: Path, rng: np.random.Generator) -> None:
        put(place, rng, *numbered(folder, COUNT))
        text = "\n".join([*([head] if head else []), *(lines(number) for number in range(COUNT))])
        (place / folder / file).write_text(text, "utf-8")

    return build


def own_folder(place: Path, rng: np.random.Generator) -> None:
    folders, names = ("0_T-shirt_top", "1_Ankle_boot"), ("T-shirt/top", "Ankle boot")
    lines = []
    for number in range(COUNT):
        path = f"{folders[number % 2]}/{number:07d}.png"
        put(place, rng, path)
        lines.append(json.dumps({"file_name": path, "label": number % 2, "class": names[number % 2]}))
    (place / "metadata.jsonl").write_text("\n".join(lines))
    for name in ("README.md", "privacy_card.json", "croissant.json", "SHA256SUMS"):
        (place / name).write_text("{}")


def own_zip(place: Path, rng: np.random.Generator) -> None:
    inside = place / "unpacked"
    inside.mkdir()
    own_folder(inside, rng)
    with zipfile.ZipFile(place / "sample.zip", "w") as archive:
        for path in sorted(inside.rglob("*")):
            archive.write(path, path.relative_to(inside))


def coco(place: Path, rng: np.random.Generator, several: bool = False) -> None:
    put(place, rng, *numbered("images", COUNT))
    seen = [{"id": n, "image_id": n, "category_id": 1 + n % 2, "bbox": [0, 0, 9, 9]} for n in range(COUNT)]
    seen += [{"id": 99, "image_id": 0, "category_id": 2}] if several else []
    images = [{"id": number, "file_name": f"{number:03d}.png"} for number in range(COUNT)]
    categories = [{"id": 1, "name": "normal"}, {"id": 2, "name": "sick"}]
    document = {"info": {}, "images": images, "annotations": seen, "categories": categories}
    (place / "annotations").mkdir()
    (place / "annotations" / "instances.json").write_text(json.dumps(document))


def yolo_boxes(place: Path, rng: np.random.Generator) -> None:
    put(place, rng, *numbered("images/train", COUNT))
    (place / "labels" / "train").mkdir(parents=True)
    for number in range(COUNT):
        (place / "labels" / "train" / f"{number:03d}.txt").write_text(f"{number % 2} 0.5 0.5 0.2 0.2\n")
    (place / "data.yaml").write_text("train: images/train\nnames: [normal, sick]\n")


def yolo_classes(place: Path, rng: np.random.Generator) -> None:
    for part in ("train", "val", "test"):
        for name in NAMES:
            put(place, rng, *numbered(f"{part}/{name}", COUNT // 2))


COCO = {"labels": "annotations/instances.json"}
INPUTS = (
    Input("hf_parquet", parquet("data/train-00000-of-00001.parquet"), BOTH),
    Input("hf_parquet_file", parquet("a.parquet"), BOTH, path="a.parquet"),
    Input("hf_parquet_shards", parquet("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"),
        Read(NAMES, 24)),
    Input("hf_parquet_parts", parquet("data/train-0.parquet", "data/test-0.parquet"),
        Read(NAMES, COUNT, said="not test")),
    Input("hf_parquet_without_names", parquet("a.parquet", names=None), Read(("0", "1"), COUNT), path="a.parquet"),
    Input("hf_parquet_texts", parquet("a.parquet", names=None, labels=[NAMES[number % 2] for number in range(COUNT)]),
        BOTH, path="a.parquet"),
    Input("hf_parquet_floats", parquet("a.parquet", names=None, labels=[0.2 + number % 2 for number in range(COUNT)]),
        Refused("numbers or names"), path="a.parquet"),
    Input("hf_parquet_several", parquet("a.parquet", names=None, labels=[["mass"], ["mass", "edema"]] * (COUNT // 2)),
        Asked("--attribute"), path="a.parquet"),
    Input("hf_parquet_unused", parquet("a.parquet", names=("a", "b", "c")), Asked("--used-classes"), path="a.parquet"),
    Input("hf_parquet_two_images", parquet("a.parquet", image="left", names=None, right=[b"x"] * COUNT),
        Asked("--file-column"), path="a.parquet"),
    Input("hf_parquet_subject", parquet("a.parquet", patient_id=[n // 2 for n in range(COUNT)]), Read(NAMES, COUNT, 6),
        path="a.parquet", unit="subject"),
    Input("hf_parquet_subject_unwanted", parquet("a.parquet", patient_id=[n // 2 for n in range(COUNT)]),
        Refused("identifies subjects"), path="a.parquet"),
    Input("hf_parquet_lesion", parquet("a.parquet", lesion_id=[n // 2 for n in range(COUNT)]),
        Read(NAMES, COUNT, said="seem to be of one person"), path="a.parquet"),
    Input("hf_parquet_torn", torn, Refused("cannot be read as a table of images"), path="a.parquet"),
    Input("hf_saved", saved, Read(NAMES, COUNT, said="not test")),
    Input("webdataset", webdataset("a.tar", "cls", lambda n: str(n % 2)), Read(("0", "1"), COUNT), path="a.tar"),
    Input("webdataset_names", webdataset("a.tar", "cls", lambda n: str(n % 2), classes=NAMES), BOTH, path="a.tar"),
    Input("webdataset_gz", webdataset("a.tar.gz", "cls", lambda n: NAMES[n % 2]), BOTH, path="a.tar.gz"),
    Input("webdataset_json", webdataset("a.tar", "json", lambda n: json.dumps({"label": NAMES[n % 2]})), BOTH,
        path="a.tar"),
    Input("webdataset_subjects",
        webdataset("a.tar", "json", lambda n: json.dumps({"label": n % 2, "patient_id": n // 2})),
        Read(("0", "1"), COUNT, 6), path="a.tar", unit="subject"),
    Input("webdataset_without_labels", webdataset("a.tar", "json", lambda _: '{"caption": "x"}'), Refused("no label"),
        path="a.tar"),
    Input("webdataset_shards", webdataset("train-000000.tar", "cls", lambda n: NAMES[n % 2]), BOTH),
    Input("hf_metadata_csv", metadata("metadata.csv", lambda n: f"{n:03d}.png,{NAMES[n % 2]}", "file_name,label"),
        BOTH),
    Input("hf_metadata_jsonl",
        metadata("metadata.jsonl", lambda n: json.dumps({"file_name": f"{n:03d}.png", "label": NAMES[n % 2]})), BOTH),
    Input("hf_metadata_in_train",
        metadata("metadata.csv", lambda n: f"{n:03d}.png,{NAMES[n % 2]}", "file_name,label", "train"), BOTH),
    Input("own_imagefolder", own_folder, Read(("T-shirt/top", "Ankle boot"), COUNT)),
    Input("own_imagefolder_zip", own_zip, Read(("T-shirt/top", "Ankle boot"), COUNT), path="sample.zip"),
    Input("coco", coco, BOTH, options=COCO),
    Input("coco_several", lambda place, rng: coco(place, rng, several=True), Asked("--attribute"), options=COCO),
    Input("yolo_classes", yolo_classes, Read(NAMES, COUNT, said="not test/")),
    Input("yolo_boxes", yolo_boxes, Refused("YOLO")),
    Input("hf_parquet_without_some_labels", parquet("a.parquet", labels=[0, 1, None, -1] * 3),
        Asked("--skip-unlabelled"), path="a.parquet"),
    Input("hf_parquet_without_some_labels_skipped", parquet("a.parquet", labels=[0, 1, None, -1] * 3),
        Read(NAMES, 6, said="6 images without a label"), path="a.parquet", options={"skip_unlabelled": True}),
)  # fmt: skip
