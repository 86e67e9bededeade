"""What lies beside and around images, and rare kinds of files: links, copies, archives in archives, TIFFs."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.intake.inputs import WORDS as PAIR
from benchmarks.intake.inputs import Asked, Build, Input, Outcome, Read, Refused, numbered, put
from benchmarks.intake.kinds import archives, arrays, known, volumes
from benchmarks.intake.kinds.folders import given as of_table
from benchmarks.intake.kinds.folders import mended
from benchmarks.intake.kinds.pixels import (
    ALL,
    EIGHT,
    FOURTEEN,
    MEASURED,
    SIDE,
    SIXTEEN,
    TEN,
    TWELVE,
    Array,
    brightens,
    darkens,
    folder_of,
    saved,
    spread,
)  # fmt: skip
from benchmarks.intake.kinds.pixels import given as of_pixels

BROKEN = Asked("--skip-broken")
_ROOM = 2048  # for what does not fit into an entry


def tiff(
    bits: int, sample: int = 1, white: int = 1, *, big: bool = False, bands: int = 1, apart: bool = False,
    extra: Sequence[int] = (),
) -> Any:  # fmt: skip
    def write(path: Path, values: Array) -> None:
        order = ">" if big else "<"
        if bits % 8:
            shifts = np.arange(bits - 1, -1, -1)
            set_bits = values.reshape(len(values), -1, 1) >> shifts & 1
            data = np.packbits(set_bits.astype(np.uint8).reshape(len(values), -1), axis=1).tobytes()
        else:
            data = values.astype(values.dtype.newbyteorder(order)).tobytes()
        strips = bands if apart else 1
        height, width = values.shape[1:] if apart else values.shape[:2]
        said = {256: ("I", [width]), 257: ("I", [height]), 258: ("H", [bits] * bands), 259: ("H", [1])}
        said |= {262: ("H", [2 if bands == 3 else white]), 277: ("H", [bands]), 278: ("I", [height])}
        said |= {284: ("H", [1 + apart]), 339: ("H", [sample] * bands)} | ({338: ("H", list(extra))} if extra else {})
        size, first = len(data) // strips, 8 + _ROOM
        said |= {273: ("I", [first + number * size for number in range(strips)]), 279: ("I", [size] * strips)}
        entries, beyond, at = b"", b"", 8 + 2 + 12 * len(said) + 4
        for tag, (kind, numbers) in sorted(said.items()):
            value = struct.pack(order + kind * len(numbers), *numbers)
            if len(value) > 4:
                value, beyond = struct.pack(order + "I", at + len(beyond)), beyond + value
            entries += struct.pack(order + "HHI", tag, {"H": 3, "I": 4}[kind], len(numbers)) + value.ljust(4, b"\0")
        head = (b"MM\0*" if big else b"II*\0") + struct.pack(order + "I", 8)
        directory = struct.pack(order + "H", len(said)) + entries + bytes(4) + beyond
        path.write_bytes(head + directory.ljust(_ROOM, b"\0") + data)

    return write


def tiffs(name: str, expected: Outcome, draw: Any, write: Any, looks: Any = None, **options: Any) -> Input:
    return of_pixels(f"tiff_{name}", folder_of(".tif", draw, write=write), expected, looks, **options)


def beside(name: str, content: bytes, count: int = 1) -> Callable[[Path, np.random.Generator], None]:
    def mend(home: Path, _: np.random.Generator) -> None:
        for number in range(count):
            (home / "sick" / name.format(number)).write_bytes(content)

    return mend


def linked(name: str, target: str) -> Callable[[Path, np.random.Generator], None]:
    return lambda home, _: (home / "sick" / name).symlink_to(target)


def copied(suffix: str) -> Callable[[Path, np.random.Generator], None]:
    def mend(home: Path, _: np.random.Generator) -> None:
        for path in sorted((home / "normal").iterdir()):
            with Image.open(path) as image:
                image.save(home / "sick" / f"{path.stem}_copy{suffix}")

    return mend


def left_behind(home: Path, rng: np.random.Generator) -> None:
    put(home, rng, "@eaDir/SYNO.png", "sick/@eaDir/000.png", "lost+found/x.png", "System Volume Information/x.png")


def tar_of_links(kind: bytes, target: Callable[[str], str]) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        with tarfile.open(folder / "a.tar", "w") as archive:
            for path, data in archives.images(rng, *PAIR):
                info, link = tarfile.TarInfo(path), tarfile.TarInfo(path.replace(".png", "_link.png"))
                info.size, link.type, link.linkname = len(data), kind, target(path)
                archive.addfile(info, io.BytesIO(data))
                archive.addfile(link)

    return build


def zip_in_zip(folder: Path, rng: np.random.Generator) -> None:
    archives.zipped()(folder, rng)
    with zipfile.ZipFile(folder / "b.zip", "w") as archive:
        archive.write(folder / "a.zip", "a.zip")


def rows(text: Callable[[int], str], name: str = "labels.csv", head: str = "file,label") -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        put(folder, rng, *numbered("", 6))
        content = "\n".join([head, *(text(number) for number in range(6)), ""]).encode()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)

    return build


def several_rows(number: int) -> str:
    return "\n".join(f"{number:03d}.png,{name}" for name in (("mass", "edema") if number % 2 else ("mass",)))


def names_of_files(folder: Path, rng: np.random.Generator) -> None:
    put(folder, rng, *numbered("", 6))
    (folder / "labels.json").write_text(json.dumps({f"{number:03d}.png": PAIR[number % 2] for number in range(6)}))


def roboflow(folder: Path, rng: np.random.Generator) -> None:
    seen = [{"id": n, "image_id": n, "category_id": n % 2} for n in range(6)]
    names = [{"id": n, "name": name} for n, name in enumerate(PAIR)]
    for part in ("train", "valid"):
        put(folder, rng, *numbered(part, 6))
        images = [{"id": n, "file_name": f"{n:03d}.png"} for n in range(6)]
        document = {"images": images, "annotations": seen, "categories": names}
        (folder / part / "_annotations.coco.json").write_text(json.dumps(document))


def shards_that_differ(folder: Path, rng: np.random.Generator) -> None:
    known.parquet("data/train-00000-of-00002.parquet")(folder, rng)
    known.parquet("data/train-00001-of-00002.parquet", names=None, labels=list(PAIR) * 6)(folder, rng)


def arrow_file(folder: Path, rng: np.random.Generator) -> None:
    import pyarrow

    kind = pyarrow.struct([("path", pyarrow.string()), ("bytes", pyarrow.binary())])
    images = pyarrow.array([{"path": None, "bytes": known.png(rng)} for _ in range(6)], kind)
    table = pyarrow.table({"image": images, "label": list(PAIR) * 3})
    with pyarrow.ipc.new_file(folder / "a.arrow", table.schema) as file:
        file.write_table(table)


def tar_with(*members: tuple[str, bytes]) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        known.webdataset("a.tar", "cls", lambda number: str(number % 2))(folder, rng)
        with tarfile.open(folder / "a.tar", "a") as archive:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))

    return build


def shards_in_folders(folder: Path, rng: np.random.Generator) -> None:
    for part in ("train", "val"):
        (folder / part).mkdir()
        known.webdataset(f"{part}/0000.tar", "cls", lambda number: PAIR[number % 2])(folder, rng)


def cut_idx(folder: Path, rng: np.random.Generator) -> None:
    arrays.idx("train", arrays.NUMBERS)(folder, rng)
    for path in sorted(folder.iterdir()):
        data = gzip.compress(path.read_bytes())
        path.with_name(f"{path.name}.gz").write_bytes(data[: -3000 if "images" in path.name else None])
        path.unlink()


def deep_npz(kind: str, most: float) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        images = np.stack([spread(0, most, kind)(rng) for _ in range(arrays.COUNT)])
        np.savez(folder / "a.npz", images=images, labels=arrays.NUMBERS)

    return build


def inflating(folder: Path, rng: np.random.Generator) -> None:
    volumes.files()(folder, rng)
    whole = volumes.dicom(TWELVE(rng), PatientID="P1", syntax=str(volumes.DeflatedExplicitVRLittleEndian))
    (folder / "sick" / "z.dcm").write_bytes(whole[:400] + bytes(400))


def of(name: str, expected: Outcome, build: Build, path: str = "", **options: Any) -> Input:
    unit = options.pop("unit", "record")
    return Input(name, build, expected, path, unit, options)


def bands(draw: Any, count: int = 3, axis: int = 2) -> Any:
    return lambda rng: np.stack([draw(rng)] * count, axis)


SIX = Read(PAIR, 6)
INPUTS = (
    tiffs("16_big_endian", ALL, SIXTEEN, tiff(16, big=True), brightens),
    tiffs("12_packed", ALL, TWELVE, tiff(12), brightens),
    tiffs("10_packed", Asked("--skip-broken", "numbers of 10 bits"), TEN, tiff(10)),
    tiffs("14_packed", Asked("--skip-broken", "numbers of 14 bits"), FOURTEEN, tiff(14)),
    tiffs("13_bands", Asked("--skip-broken", "13 channels"), bands(SIXTEEN, 13), tiff(16, bands=13)),
    tiffs("2_bands", Asked("--skip-broken", "2 channels"), bands(EIGHT, 2), tiff(8, bands=2)),
    tiffs("infrared", Read(PAIR, 12, said="of 4 channels"), bands(EIGHT, 4),
          tiff(8, white=2, bands=4, extra=[0]), brightens),
    tiffs("4_bits_min_is_white", ALL, spread(0, 15, "u1"), tiff(4, white=0), darkens),
    tiffs("8_big_endian_min_is_white", ALL, EIGHT, tiff(8, white=0, big=True), darkens),
    tiffs("signed_8", ALL, spread(-128, 127, "i1"), tiff(8, 2), brightens, window="-128,127"),
    tiffs("signed_32_big_endian", ALL, spread(-9, 9000, "i4"), tiff(32, 2, big=True), brightens, window="-9,9000"),
    tiffs("32_bits", ALL, spread(0, 2**32 - 1, "u4"), tiff(32), brightens),
    tiffs("float_big_endian", ALL, MEASURED, tiff(32, 3, big=True), brightens, window="0,1"),
    tiffs("float_min_is_white", ALL, MEASURED, tiff(32, 3, white=0), darkens, window="0,1"),
    tiffs("float_of_64", Asked("--skip-broken", "floats of 64 bits"), spread(0, 1, "f8"), tiff(64, 3), window="0,1"),
    tiffs("colours_apart", ALL, bands(EIGHT, 3, 0), tiff(8, bands=3, apart=True), brightens),
    tiffs("colours_of_16_big_endian", ALL, bands(SIXTEEN), tiff(16, bands=3, big=True), brightens),
    tiffs("colours_of_16_apart", Asked("--skip-broken", "stored apart"), bands(SIXTEEN, 3, 0),
          tiff(16, bands=3, apart=True)),
    of_pixels("jpeg2000", folder_of(".jp2", EIGHT, write=saved("JPEG2000")), ALL, brightens),
    of_pixels("jpeg2000_of_16_bits", folder_of(".j2k", SIXTEEN, write=saved("JPEG2000")), ALL, brightens),
    of_pixels("without_suffixes", folder_of("", EIGHT, write=saved("PNG")), ALL, brightens),
    of_pixels("pnm", folder_of(".pnm", EIGHT, write=saved("PPM")), ALL, brightens),
    of_pixels("pfm", folder_of(".pfm", MEASURED, write=saved("PPM")), Asked("--window", "signed or measured")),
    mended("some_of_another_kind", BROKEN, beside("x{}.jxl", b"\xff\x0a", 3)),
    mended("a_film", BROKEN, beside("x.avi", b"RIFF")),
    mended("an_empty_file", Asked("--skip-broken", "it is empty"), beside("x.png", b"")),
    mended("a_web_page", Asked("--skip-broken", "web page"), beside("x.png", b"<!DOCTYPE html><html>")),
    mended("a_pointer_of_git_lfs", Asked("--skip-broken", "git lfs pull"),
           beside("x.png", b"version https://git-lfs.github.com/spec/v1\n")),
    mended("link_to_itself", Asked("--skip-broken", "a link to a file"), linked("x.png", "x.png")),
    mended("link_to_the_folder_above", SIX, linked("up", "..")),
    mended("left_behind", Read(PAIR, 6, said="hidden or system file"), left_behind),
    mended("copies_of_another_type", Read(PAIR, 9, said="in several classes"), copied(".tif")),
    of("tar_of_hard_links", Read(PAIR, 24, said="more than once"), tar_of_links(tarfile.LNKTYPE, str), "a.tar"),
    of("tar_of_links", Read(PAIR, 24, said="more than once"),
       tar_of_links(tarfile.SYMTYPE, lambda path: path.rpartition("/")[2]), "a.tar"),
    of("tar_of_dead_links", Asked("--skip-broken", "not in the tar"),
       tar_of_links(tarfile.SYMTYPE, lambda _: "/etc/passwd.png"), "a.tar"),
    of("zip_in_zip", Refused("unpack each"), zip_in_zip, "b.zip"),
    of_table("csv_several_rows", rows(several_rows), Asked("--attribute", "edema")),
    of_table("csv_several_rows_chosen", rows(several_rows), Read(("not edema", "edema"), 6),
             options={"attribute": "edema"}),
    of_table("csv_remark_first", rows(lambda n: f"{n:03d}.png,{PAIR[n % 2]}", head="# seen by two\nfile,label"), SIX),
    of_table("csv_title_first", rows(lambda n: f"{n:03d}.png,{PAIR[n % 2]},", head="Study 12,,\nfile,label,"), SIX),
    of_table("csv_unused_parts", rows(lambda n: f"{n:03d}.png,{PAIR[n % 2]},{('train', 'test')[n // 3]}",
                                      head="file,label,split"), Read(PAIR, 6, said="all of the column 'split'")),
    of_table("json_of_files", names_of_files, SIX, "labels.json"),
    of("coco_in_parts", Asked("--labels", "train/_annotations.coco.json"), roboflow),
    of("coco_in_parts_stated", Read(PAIR, 6, said="train/"), roboflow, labels="train/_annotations.coco.json"),
    of("hf_shards_that_differ", Refused("differ"), shards_that_differ),
    of("arrow_file", SIX, arrow_file, "a.arrow"),
    of("hf_parquet_truths", Read(("0", "1"), 12), known.parquet("a.parquet", names=None, labels=[True, False] * 6),
       "a.parquet"),
    of("webdataset_without_some_labels", Asked("--skip-unlabelled"), tar_with(("x.png", b"no label")), "a.tar"),
    of("webdataset_names_damaged", Refused("not a list of names"), tar_with(("__classes.json__", b"{{{")), "a.tar"),
    of("webdataset_in_folders", Read(PAIR, 12, said="not val"), shards_in_folders),
    of("idx_gz_cut", Refused("ends before its last image"), cut_idx),
    of("npz_of_16_bits", Read(("0", "1"), 12, looks=brightens), deep_npz("u2", 65535), "a.npz"),
    of("npz_of_12_bits", Asked("--depth"), deep_npz("u2", 4095), "a.npz"),
    of("npz_of_12_bits_stated", Read(("0", "1"), 12, looks=brightens), deep_npz("u2", 4095), "a.npz", depth=12),
    of("npz_of_floats_windowed", Read(("0", "1"), 12, looks=brightens), deep_npz("f4", 1), "a.npz", window="0,1"),
    of("npz_of_truths", Read(("0", "1"), 12), arrays.npz(labels=arrays.NUMBERS.astype(bool)), "a.npz"),
    of("npz_of_patients", Refused("identifies subjects"), arrays.npz(
       labels=arrays.NUMBERS, patient_id=np.arange(12) // 2),
       "a.npz"),
    of("npz_without_pixels", Refused("have no pixels"), lambda folder,
        _: np.savez(folder / "a.npz", images=np.zeros((12, 0, 28), "u1"), labels=arrays.NUMBERS), "a.npz"),
    of("dicom_in_a_wrapper", Read(PAIR, 12, 6, said="scans/"), volumes.files("scans/{word}/IM{number:04d}"),
       unit="subject"),
    of("dicom_in_wrappers_in_a_zip", Read(PAIR, 12, 6, said="b/"),
       volumes.zipped(volumes.files("a/b/{word}/{patient}/IM{number}")), "a.zip", unit="subject"),
    of("dicom_in_train", Read(PAIR, 12, 6, said="train/"), volumes.files("train/{word}/IM{number}"), unit="subject"),
    of("dicom_of_one_class", Asked("--classes", "one person alone"), volumes.files("normal/{patient}/IM{number}"),
       unit="subject"),
    of("dicom_in_no_folders", Asked("--label-tag"), volumes.files("IM{number:04d}"), unit="subject"),
    of("dicom_classes_of_names", Asked("--rename-classes"), volumes.files("x/{number}"), unit="subject",
       label_tag="PatientName"),
    of("dicom_classes_of_pixels", Refused("neither text nor numbers"), volumes.files("x/{number}"), unit="subject",
       label_tag="PixelData"),
    of("dicom_of_slope_0", Asked("--skip-broken", "RescaleSlope is 0"),
       volumes.files(RescaleSlope=0, RescaleIntercept=0), unit="subject"),
    of("dicom_of_window_0", volumes.looking(brightens), volumes.files(WindowCenter=2048, WindowWidth=0),
       unit="subject"),
    of("dicom_of_planes", volumes.looking(brightens),
       volumes.files(draw=lambda rng: np.stack([EIGHT(rng)] * 3).reshape(SIDE, SIDE, 3), PlanarConfiguration=1,
                     PhotometricInterpretation="RGB"), unit="subject"),
    of("dicom_inverted_in_rle", volumes.looking(darkens),
       volumes.files(PhotometricInterpretation="MONOCHROME1", syntax=str(volumes.RLELossless)), unit="subject"),
    of("dicom_of_nobody", Refused("is a placeholder"), volumes.files(PatientID="00000000"), unit="subject"),
    of("dicom_not_deflated", BROKEN, inflating, unit="subject"),
    of("nifti_in_a_wrapper", Read(PAIR, 12, 12, said="vols/"), volumes.volumes("vols/{word}/sub-{number:02d}.nii"),
       unit="subject", slices="axial"),
    of("nifti_in_no_folders", Refused("in no class folders"), volumes.volumes("x{number:02d}.nii"), unit="subject",
       slices="axial"),
)  # fmt: skip
