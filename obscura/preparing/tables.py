"""Tables as people have them: any delimiter and encoding, lines of JSON, with and without a line of names."""

from __future__ import annotations

import ast
import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from obscura.pictures.types import picture_suffixes
from obscura.preparing.errors import ChoiceNeeded, PackingError

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")  # of what is a table and nothing else
SEVERAL = "|"  # between the labels of one picture
_BYTES_MAX = 2**30
_CELL_CHARACTERS_MAX = 2**20
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before the one of UTF-16, with which it begins
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
_GZIP = b"\x1f\x8b"
_NO_TABLES = {
    b"version https://git-lfs": "a pointer of Git LFS: git lfs pull brings the table",
    b"<": "a web page or XML, and no table: its download went wrong, or it is of another kind",
    b"%PDF": "a PDF: write the labels into a CSV",
}
_DELIMITERS = ("\t", ";", ",", "|", " ")


@dataclass(frozen=True)
class Table:
    """Rows of texts, without the line of names.

    Attributes:
        name: Of the file.
        columns: Their names; "1", "2", ... where the table does not name them.
        rows: As many texts each; a missing one is "".
        named: Whether the table has a line of names.
    """

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    named: bool = True

    def cells(self, column: str) -> Iterator[str]:
        """The texts of one column, without white space around them."""
        at = self.columns.index(column)
        return (row[at].strip() for row in self.rows)


def read_table(path: Path, encoding: str | None = None) -> Table:
    """Read a table.

    Args:
        path: Of a .csv, .tsv or the like, of a .jsonl, or of annotations in COCO's .json.
        encoding: That its owner states, such as "latin-1".

    Raises:
        ChoiceNeeded: Nothing says how its letters are encoded.
        PackingError: It cannot be read as a table.
    """
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise PackingError(f"The table {path.name} is larger than {_BYTES_MAX >> 30} GiB.")
        data = path.read_bytes()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise PackingError(f"The table {path.name} cannot be read: {why}.") from error
    return parse_table(path.name, data, encoding)


def parse_table(name: str, data: bytes, encoding: str | None = None) -> Table:
    """Read a table from the content of its file; see `read_table`."""
    if data.startswith(_GZIP):
        data, name = _unpacked(name, data), name.removesuffix(".gz")
    other = next((what for magic, what in _NO_TABLES.items() if data.lstrip().startswith(magic)), None)
    if other is not None:
        raise PackingError(f"{name} is {other}.")
    if data.startswith(_WORKBOOKS):
        raise PackingError(f"{name} is a workbook or an archive: save the sheet with the labels as CSV.")
    text = _decoded(name, data, encoding)
    told = re.match(r"\s*sep=(.)\r?\n", text)  # as Excel writes it
    text = text[told.end() :] if told else text
    lines = [line for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("#")] or lines
    if not lines:
        raise PackingError(f"{name} names no picture.")
    if name.lower().endswith(".json"):
        table = _of_document(name, text)
    else:
        table = (
            _of_json(name, lines)
            if lines[0].lstrip().startswith("{")
            else _of_delimited(name, text, told[1] if told else _delimiter(lines))
        )
    if not table.rows:
        raise PackingError(f"{name} names no picture.")
    return table


def _decoded(name: str, data: bytes, encoding: str | None) -> str:
    known = encoding or next((known for bom, known in _BOMS if data.startswith(bom)), None) or _wide(data)
    try:
        return data.decode(known or "utf-8")
    except LookupError:
        raise PackingError(f"--table-encoding is a name such as utf-8, latin-1 or cp1250, not {encoding!r}.") from None
    except UnicodeDecodeError as error:
        if known is not None:
            raise PackingError(f"The table {name} is not encoded in {known}.") from None
        around = data[: error.start].rpartition(b"\n")[2] + data[error.start :].partition(b"\n")[0]
        raise ChoiceNeeded(
            f"The table {name} is not in UTF-8, and names of classes become public as they are read. As latin-1 a line "
            f"of it is {around[:200].decode('latin-1').strip()!r}; others are cp1250, cp1251, shift_jis and gbk.",
            ["--table-encoding latin-1"],
        ) from None


def _wide(data: bytes) -> str | None:
    """UTF-16 that does not say so: every other byte of its ASCII letters is 0."""
    head = data[:200]
    if len(head) >= 4 and not any(head[1:40:2]):
        return "utf-16-le"
    return "utf-16-be" if len(head) >= 4 and not any(head[0:40:2]) else None


def _of_document(name: str, text: str) -> Table:
    """A list of JSON objects; or COCO's `images`, `categories` and `annotations`, which say what is seen in which."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PackingError(f"{name} is not JSON: {error}.") from None
    if isinstance(document, list):
        return _of_objects(name, document)
    if isinstance(document, dict) and document and all(map(_is_picture, document)):
        return Table(name, ("file", "label"), [(file, _json_text(label)) for file, label in document.items()])
    try:
        called = {each["id"]: str(each["name"]) for each in document["categories"]}
        seen: dict[object, dict[str, None]] = {each["id"]: {} for each in document["images"]}
        for each in document["annotations"]:
            seen[each["image_id"]][called[each["category_id"]]] = None
        rows = [(str(each["file_name"]), SEVERAL.join(seen[each["id"]])) for each in document["images"]]
    except (KeyError, TypeError):
        raise PackingError(
            f"{name} is neither a list of JSON objects, nor one of files and their labels, nor annotations as COCO "
            "writes them: images, categories and annotations."
        ) from None
    return Table(name, ("file_name", "label"), list[tuple[str, ...]](rows))


def _of_json(name: str, lines: Sequence[str]) -> Table:
    try:
        return _of_objects(name, [json.loads(line) for line in lines])
    except ValueError as error:
        raise PackingError(f"{name} is not made of lines of JSON: {error}.") from None


def _of_objects(name: str, found: Sequence[object]) -> Table:
    objects = [each for each in found if isinstance(each, dict)]
    if len(objects) < len(found):
        raise PackingError(f"{name} is not made of JSON objects, one for each picture.")
    columns = tuple(dict.fromkeys(key for each in objects for key in each))
    return Table(name, columns, [tuple(_json_text(each.get(column)) for column in columns) for each in objects])


def _json_text(value: object) -> str:
    """A value as a text; a list of labels is written with bars between them, as tables have it."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return SEVERAL.join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _of_delimited(name: str, text: str, delimiter: str) -> Table:
    csv.field_size_limit(_CELL_CHARACTERS_MAX)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter == " ")
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise PackingError(f"The table {name} cannot be read: {error}.") from None
    while len(rows) > 1 and _is_title(rows[0][1], rows[1][1]):
        rows = rows[1:]
    head = [cell.strip() for cell in rows[0][1]]
    named = not any(_is_picture(cell) for cell in head)
    columns = tuple(head if named else map(str, range(1, len(head) + 1)))
    twice = next((column for column in columns if column and columns.count(column) > 1), None)
    if twice is not None:
        raise PackingError(f"{name} has two columns {twice!r}.")
    body = []
    for line, row in rows[named:]:
        if len(row) > len(columns) and any(cell.strip() for cell in row[len(columns) :]):
            raise PackingError(
                f"Line {line} of {name} has {len(row)} cells, and there are {len(columns)} columns: a text that holds "
                f"{delimiter!r} stands in quotation marks."
            )
        body.append(tuple(map(_unlisted, (*row, *[""] * len(columns))[: len(columns)])))
    return Table(name, columns, body, named)


def _is_title(row: list[str], below: list[str]) -> bool:
    """Whether a line is the title of a sheet, one text and empty cells, or a remark that is not cut like the others."""
    alone = len(row) > 1 and bool(row[0].strip()) and not any(cell.strip() for cell in row[1:])
    return alone or (row[0].startswith("#") and len(row) != len(below))


def _unpacked(name: str, data: bytes) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as file:
            plain = file.read(_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise PackingError(f"The table {name} cannot be unpacked: {error}.") from None
    if len(plain) > _BYTES_MAX:
        raise PackingError(f"The table {name} is larger than {_BYTES_MAX >> 30} GiB unpacked.")
    return plain


def _unlisted(cell: str) -> str:
    """A cell; where it is a list as Python writes it, ['a', 'b'], with bars between its items."""
    if not (cell.startswith("[") and cell.endswith("]")):
        return cell
    try:
        return _json_text(ast.literal_eval(cell))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return cell


def _delimiter(lines: Sequence[str]) -> str:
    """The one that cuts the first lines into equally many cells, and into most."""
    best, most = ",", 1.0
    for delimiter in _DELIMITERS:
        if delimiter == " " and most >= 2:  # spaces stand inside of names, too
            continue
        counts = {len(row) for row in csv.reader(lines[:20], delimiter=delimiter, skipinitialspace=delimiter == " ")}
        first = len(next(csv.reader(lines[:1], delimiter=delimiter, skipinitialspace=delimiter == " ")))
        score = float(first) if len(counts) == 1 else 1 + (first - 1) / 1000
        if score > most:
            best, most = delimiter, score
    return best


def _is_picture(cell: str) -> bool:
    return cell.lower().endswith(tuple(picture_suffixes()))
