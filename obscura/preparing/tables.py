"""Tables of any delimiter and encoding, JSON lines and COCO annotations, with or without a header."""

from __future__ import annotations

import ast
import codecs
import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from obscura.errors import ChoiceNeeded, PackingError
from obscura.image_types import image_suffixes
from obscura.wire.uploads import SubjectId

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")  # suffixes of files that can only be tables
SEVERAL = "|"  # between the labels of one image
_BYTES_MAX = 2**30
_CELL_CHARACTERS_MAX = 2**20
BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's mark, which is its prefix
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NO_TABLES = {
    b"version https://git-lfs": "a Git LFS pointer without the table: run git lfs pull",
    b"<": "a web page or XML, not a table: the download failed, or it is another kind of file",
    b"%PDF": "a PDF: write the labels into a CSV",
}
_DELIMITERS = ("\t", ";", ",", "|", " ")


@dataclass(frozen=True)
class Table:
    """Rows of text, without the header.

    Attributes:
        columns: Names from the header. Without a header, they are "1", "2", ..., and `named` is False.
        rows: One text per column, "" if missing.
        lines: Line number of each row; empty for formats without lines.
    """

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    named: bool = True
    lines: tuple[int, ...] = ()

    def cells(self, column: str) -> Iterator[str]:
        at = self.columns.index(column)
        return (row[at].strip() for row in self.rows)

    def place(self, row: int) -> str:
        """Return the place of a row for messages: "line 3 of labels.csv"."""
        return f"line {self.lines[row]} of {self.name}" if self.lines else f"row {row + 1} of {self.name}"


def read_table(path: Path, encoding: str | None = None) -> Table:
    """Read a table: delimited text such as CSV or TSV, JSON lines, or COCO annotations."""
    return parse_table(path.name, _content(path), encoding)


def parse_table(name: str, data: bytes, encoding: str | None = None) -> Table:
    name, text, delimiter = _text(name, data, encoding)
    lines = _lines(text)
    lines = {number: line for number, line in lines.items() if not line.startswith("#")} or lines
    if not lines:
        raise PackingError(f"{name} holds no rows.")
    rows = list(lines.values())
    if name.lower().endswith(".json"):
        table = _of_document(name, text)
    elif rows[0].lstrip().startswith("{"):
        try:
            table = replace(_of_objects(name, list(map(json.loads, rows))), lines=tuple(lines))
        except ValueError as error:
            raise PackingError(f"Not every line of {name} is JSON: {error}.") from None
    else:
        table = _of_delimited(name, text, delimiter or _delimiter(rows, _DELIMITERS))
    if not table.rows:
        raise PackingError(f"{name} holds no rows.")
    return table


def read_ids(path: Path) -> tuple[str, dict[SubjectId, str]]:
    """Read subject ids from a file ("-" is standard input) with one column, or with one column headed as ids.

    Returns:
        The column's heading ("" without a heading), and where each id stands, for messages: "line 3 of ids.csv".
    """
    try:
        name, text, delimiter = _text(path.name, _content(path), None)
    except ChoiceNeeded:
        raise PackingError(
            f"{path.name} is not encoded in UTF-8 or UTF-16. Save it as UTF-8 (in Excel: CSV UTF-8)."
        ) from None
    lines = list(_lines(text).values())
    rows = _cut(name, text, delimiter or _delimiter(lines, _DELIMITERS[:-1])) if lines else []
    columns = [list(map(str.strip, cells)) for cells in zip_longest(*(row for _, row in rows), fillvalue="")]
    used = list(filter(any, columns))
    if not used:
        raise PackingError(f"{name} holds no subject ids.")
    headed = [cells for cells in used if usual_columns("ids", cells[:1])]
    if len(used) > 1 and len(headed) != 1:
        raise PackingError(
            f"{name} has {len(used)} columns, but its first line does not identify the column of subject ids. Save a "
            "file with only the subject ids, one per line."
        )
    ids = (headed or used)[0]
    cells = [(line, cell) for (line, _), cell in zip(rows, ids, strict=True)][bool(headed) :]
    if not cells:
        raise PackingError(f"{name} holds no subject ids.")
    blank = next((line for line, cell in cells if not cell), None)
    if blank is not None:
        raise PackingError(f"Line {blank} of {name} has values, but none in the column of subject ids.")
    places: dict[SubjectId, str] = {}
    for line, cell in cells:
        places.setdefault(cell, f"line {line} of {path.name}")
    return ids[0] if headed else "", places


def read_lines(path: Path, encoding: str | None = None) -> list[str]:
    """Return the non-empty lines of a text file, without surrounding quotation marks."""
    name, text, _ = _text(path.name, _content(path), encoding)
    lines = [line.strip() for line in _lines(text).values()]
    if not lines:
        raise PackingError(f"{name} holds no lines.")
    quoted = re.compile(r'"(.*)"')
    return [found[1].replace('""', '"') if (found := quoted.fullmatch(line)) else line for line in lines]


def read_renames(path: Path, encoding: str | None = None) -> dict[str, str]:
    """Read the new name of each class from a table with the columns old and new."""
    table = read_table(path, encoding)
    columns = {column.casefold(): column for column in table.columns}
    if not {"old", "new"} <= set(columns):
        raise PackingError(
            f"The first line of {path.name} must name the two columns: old,new. It reads {', '.join(table.columns)!r}."
        )
    renamed: dict[str, str] = {}
    pairs = zip(table.cells(columns["old"]), table.cells(columns["new"]), strict=True)
    for row, (old, new) in enumerate(pairs):
        if not old or not new or renamed.setdefault(old, new) != new:
            place = table.place(row)
            raise PackingError(f"{place[0].upper()}{place[1:]} lacks a name or contradicts another line: correct it.")
    return renamed


def _content(path: Path) -> bytes:
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:  # it may be a pipe, which has no size
                data = file.read(_BYTES_MAX + 1)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise PackingError(f"The table {path.name} cannot be read: {why}.") from error
    if len(data) > _BYTES_MAX:
        raise PackingError(f"The table {path.name} is larger than {_BYTES_MAX >> 30} GiB.")
    return data


def _text(name: str, data: bytes, encoding: str | None) -> tuple[str, str, str | None]:
    if data.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(_BYTES_MAX + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise PackingError(f"The table {name} cannot be unpacked: {error}.") from None
        if len(data) > _BYTES_MAX:
            raise PackingError(f"The table {name} is larger than {_BYTES_MAX >> 30} GiB unpacked.")
        name = name.removesuffix(".gz")
    other = next((what for magic, what in _NO_TABLES.items() if data.lstrip().startswith(magic)), None)
    if other is not None:
        raise PackingError(f"{name} is {other}.")
    if data.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise PackingError(f"{name} is a workbook or an archive: save the sheet with the labels as CSV.")
    text = _decoded(name, data, encoding).removeprefix("\ufeff")
    if "\0" in text:
        raise PackingError(f"{name} holds NUL characters, so it is not a text file. Save it as CSV in UTF-8.")
    stated = re.match(r"\s*sep=(.)(?:\r\n?|\n)", text)  # as Excel writes it
    return (name, "\n" + text[stated.end() :], stated[1]) if stated else (name, text, None)


def _lines(text: str) -> dict[int, str]:
    # Non-empty lines, by number.
    return {number: line for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1) if line.strip()}


def _decoded(name: str, data: bytes, encoding: str | None) -> str:
    known = encoding or next((known for bom, known in BOMS if data.startswith(bom)), None)
    # UTF-16 without a byte-order mark: most bytes at odd (or even) positions are 0, and no other byte is.
    head = data[: min(len(data), 400) & ~1]
    for wide, zeros, others in (("utf-16-le", head[1::2], head[::2]), ("utf-16-be", head[::2], head[1::2])):
        if head and 2 * zeros.count(0) >= len(zeros) and 0 not in others:
            known = known or wide
    try:
        return data.decode(known or "utf-8")
    except LookupError:
        raise PackingError(f"--table-encoding is a name such as utf-8, latin-1 or cp1250, not {encoding!r}.") from None
    except UnicodeDecodeError as error:
        if known is not None:
            raise PackingError(f"The table {name} is not encoded in {known}.") from None
        around = data[: error.start].rpartition(b"\n")[2] + data[error.start :].partition(b"\n")[0]
        raise ChoiceNeeded(
            f"The table {name} is not in UTF-8, and wrongly decoded class names would become public. Decoded as "
            f"latin-1, one line is {around[:200].decode('latin-1').strip()!r}. If that is wrong, try cp1250, cp1251, "
            "shift_jis or gbk.",
            ["--table-encoding latin-1"],
        ) from None


def _of_document(name: str, text: str) -> Table:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PackingError(f"{name} is not JSON: {error}.") from None
    if isinstance(document, list):
        return _of_objects(name, document)
    if isinstance(document, dict) and document and all(map(_is_image, document)):
        return Table(name, ("file", "label"), [(file, _json_text(label)) for file, label in document.items()])
    try:
        called = {each["id"]: str(each["name"]) for each in document["categories"]}
        seen: dict[object, dict[str, None]] = {each["id"]: {} for each in document["images"]}
        for each in document["annotations"]:
            seen[each["image_id"]][called[each["category_id"]]] = None
        rows = [(str(each["file_name"]), SEVERAL.join(seen[each["id"]])) for each in document["images"]]
    except (KeyError, TypeError):
        raise PackingError(
            f"{name} has an unknown structure. Write a list of JSON objects, one object that maps files to labels, or "
            "COCO annotations (images, categories and annotations)."
        ) from None
    return Table(name, ("file_name", "label"), list[tuple[str, ...]](rows))


def _of_objects(name: str, found: Sequence[object]) -> Table:
    objects = [each for each in found if isinstance(each, dict)]
    if len(objects) < len(found):
        raise PackingError(f"{name} must contain only JSON objects, one for each image.")
    columns = tuple(dict.fromkeys(key for each in objects for key in each))
    return Table(name, columns, [tuple(_json_text(each.get(column)) for column in columns) for each in objects])


def _json_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return SEVERAL.join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(name: str, text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    csv.field_size_limit(_CELL_CHARACTERS_MAX)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter == " ")
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise PackingError(f"The table {name} cannot be read: {error}.") from None


def _of_delimited(name: str, text: str, delimiter: str) -> Table:
    rows = _cut(name, text, delimiter)
    while len(rows) > 1:  # skip titles and remarks above the header
        first = rows[0][1]
        alone = len(first) > 1 and bool(first[0].strip()) and not any(cell.strip() for cell in first[1:])
        if not alone and not (first[0].startswith("#") and len(first) != len(rows[1][1])):
            break
        rows = rows[1:]
    head = [cell.strip() for cell in rows[0][1]]
    named = not any(map(_is_image, head))
    columns = tuple(head if named else map(str, range(1, len(head) + 1)))
    twice = next((column for column in columns if column and columns.count(column) > 1), None)
    if twice is not None:
        raise PackingError(f"{name} has two columns {twice!r}: rename one of them.")
    body = []
    for line, row in rows[named:]:
        if len(row) > len(columns) and any(cell.strip() for cell in row[len(columns) :]):
            raise PackingError(
                f"Line {line} of {name} has {len(row)} cells, but there are {len(columns)} columns: put text that "
                f"contains {delimiter!r} in quotation marks."
            )
        cells = (*row, *[""] * len(columns))[: len(columns)]
        for at, cell in enumerate(cells):
            if cell.startswith("[") and cell.endswith("]"):  # a list, as pandas writes it
                with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                    cells = (*cells[:at], _json_text(ast.literal_eval(cell)), *cells[at + 1 :])
        body.append(cells)
    return Table(name, columns, body, named, tuple(line for line, _ in rows[named:]))


def _delimiter(lines: Sequence[str], delimiters: Sequence[str]) -> str:
    best, most = ",", 1.0
    for delimiter in delimiters:
        if delimiter == " " and most >= 2:  # names contain spaces, too
            continue
        counts = {len(row) for row in csv.reader(lines[:20], delimiter=delimiter, skipinitialspace=delimiter == " ")}
        first = len(next(csv.reader(lines[:1], delimiter=delimiter, skipinitialspace=delimiter == " ")))
        score = float(first) if len(counts) == 1 else 1 + (first - 1) / 1000
        if score > most:
            best, most = delimiter, score
    return best


def _is_image(name: str) -> bool:
    return name.lower().endswith(tuple(image_suffixes()))


_SUFFIX = r"(?:ids?|no|nr|num|number|nummer|code|key|name|(?:instance)?uid|identifier)"
_SUBJECT = (
    r"(?:(?:subject|patient(?:en)?|person|participant|proband|donor|volunteer|individual|pseudonym|animal)s?"
    r"|(?:pat|case|fall|pseudo|anon|user)(?=id|no|nr|num|code))(?:ids?|no|nr|num|number|nummer|code|key|name|uid|identifier)?"
    r"|(?:id|name|nr)(?:subject|patient|person|participant)|pid|mrn|eid"
    r"|medicalrecord(?:no|nr|number)|ssn|nhs(?:no|number)"
)
# Names in CheXpert, NIH ChestX-ray14, HAM10000, ISIC, Kaggle and Hugging Face, in lower-case letters and digits only.
_USUAL = {
    "file": r"file|filename|filepath|path|imagepath|imgpath|imagefile|imagefilename|image|imageindex|imageid|imagename"
    r"|img|imgname|isicid|dicomid|idcode|id|key",
    "label": r"labels?|class|classname|classlabel|dx|target|findinglabels|finding|diagnosis|category|level",
    "subject": _SUBJECT,
    "ids": rf"{_SUBJECT}|ids?",  # headings of a list of ids
    # Ids that several images of one person share: HAM10000's lesion_id, StudyInstanceUID.
    "group": r"(?:lesion|nodule|tumou?r|polyp|study|exam(?:ination)?|scan|series|session|visit|encounter|admission"
    rf"|accession|acquisition|video|clip|slide|biopsy|specimen|case|family){_SUFFIX}?"
    r"|(?:eye|breast|knee|hip|hand|tooth|wound|mole|sample|volume|block|stack|group|hadm|stay|event|episode)"
    rf"{_SUFFIX}",
}


def usual_columns(kind: Literal["file", "label", "subject", "ids", "group"], columns: Iterable[str]) -> list[str]:
    """Return the columns with a common name for one kind: image file, class, subject, list of ids, or image group."""
    return [column for column in columns if re.fullmatch(_USUAL[kind], re.sub(r"[^a-z0-9]", "", column.casefold()))]
