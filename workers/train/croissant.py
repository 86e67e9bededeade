"""Croissant: a description of a sample that readers of many kinds understand, as JSON-LD beside the images.

The form is Croissant 1.0 (https://docs.mlcommons.org/croissant/docs/croissant-spec.html).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from service.cards import folder_names

CROISSANT_FILE = "croissant.json"
_WORDS = """
    citeAs column conformsTo cr data dataBiases dataCollection dataType dct equivalentProperty examples extract field
    fileObject fileProperty fileSet format includes isLiveDataset jsonPath key md5 parentField path
    personalSensitiveInformation rai recordSet references regex repeated replace samplingRate sc separator source
    subField transform
"""
_ELSEWHERE: Mapping[str, Any] = {
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}
_CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{word: _ELSEWHERE.get(word, f"cr:{word}") for word in _WORDS.split()},
}


def describe_folders(title: str, card: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """Describe class folders of PNG files: records `images` with `image` and `folder`, which `classes` explains."""
    files = {"@type": "cr:FileSet", "@id": "pictures", "encodingFormat": "image/png", "includes": "*/*.png"}
    image = _field("images/image", "sc:ImageObject", {"fileSet": {"@id": "pictures"}} | _extract("content"))
    path = {"fileSet": {"@id": "pictures"}} | _extract("fullpath") | {"transform": {"regex": "^([^/]+)"}}
    folder = _field("images/folder", "sc:Text", path) | {"references": {"field": {"@id": "classes/folder"}}}
    return _document(title, card, names, files, [image, folder])


def describe_parquet(title: str, card: Mapping[str, Any], names: Sequence[str], path: str, sha256: str) -> bytes:
    """Describe a Parquet file: records `images` with `image` and `label`, which `classes` explains."""
    files = {
        "@type": "cr:FileObject",
        "@id": "table",
        "contentUrl": path,
        "encodingFormat": "application/x-parquet",
        "sha256": sha256,
    }
    column = {"fileObject": {"@id": "table"}, "extract": {"column": "image"}, "transform": {"jsonPath": "bytes"}}
    image = _field("images/image", "sc:ImageObject", column)
    column = {"fileObject": {"@id": "table"}, "extract": {"column": "label"}}
    label = _field("images/label", "sc:Integer", column) | {"references": {"field": {"@id": "classes/label"}}}
    return _document(title, card, names, files, [image, label])


def _document(
    title: str,
    card: Mapping[str, Any],
    names: Sequence[str],
    files: Mapping[str, Any],
    fields: Sequence[Mapping[str, Any]],
) -> bytes:
    rows = [
        {"classes/label": label, "classes/folder": folder, "classes/name": name}
        for label, (folder, name) in enumerate(zip(folder_names(names), names, strict=True))
    ]
    classes = {
        "@type": "cr:RecordSet",
        "@id": "classes",
        "name": "classes",
        "dataType": "sc:Enumeration",
        "key": {"@id": "classes/label"},
        "field": [
            _field("classes/label", "sc:Integer"),
            _field("classes/folder", "sc:Text"),
            _field("classes/name", "sc:Text"),
        ],
        "data": rows,
    }
    images = {"@type": "cr:RecordSet", "@id": "images", "name": "images", "field": fields}
    document = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": title,
        "description": "Synthetic images, drawn by a generator that was trained under differential privacy "
        f"(epsilon {card.get('epsilon')}, delta {card.get('delta')}); privacy_card.json holds the full statement.",
        "personalSensitiveInformation": "No image is a record of anybody; the privacy card says what that promises.",
        "distribution": [files],
        "recordSet": [classes, images],
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _field(identifier: str, kind: str, source: Mapping[str, Any] | None = None) -> dict[str, Any]:
    field = {"@type": "cr:Field", "@id": identifier, "name": identifier, "dataType": kind}
    return field if source is None else {**field, "source": dict(source)}


def _extract(what: str) -> dict[str, Any]:
    return {"extract": {"fileProperty": what}}
