"""The ways to push an input, each to the same service: in Python, by the command line, in the browser."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.intake.inputs import Asked, ImageInput, Input, Outcome, Read
from obscura.cli import main as command_line
from obscura.client import Client
from obscura.client.datasets import Datasets
from obscura.client.resources import Dataset
from obscura.errors import ObscuraClientError
from obscura.preparing import ChoiceNeeded, Package

FORKS = multiprocessing.get_context("forkserver")  # processes of their own that need not import everything anew
FORKS.set_forkserver_preload(["benchmarks.intake.ways", "obscura.cli.app"])
CLI_SECONDS_MAX = 300.0
CHROMIUM = Path("/usr/bin/chromium")
BROWSER_MS = 60_000
ACCOUNTS = {"record": "records", "subject": "subjects"}


@dataclass
class Got:
    """The outcome of an input."""

    what: str  # read, asked, refused, or failed: by an unexpected error
    said: str = ""
    flags: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    records: int | None = None
    subjects: int | None = None
    declared: int = 0
    images: ImageInput | None = field(default=None, repr=False)

    def shown(self) -> str:
        """Return it in a few words."""
        if self.what == "read":
            counts = {"records": self.records, "subjects": self.subjects}
            listed = "".join(f"; {count} {noun}" for noun, count in counts.items() if count is not None)
            return f"read: {', '.join(self.classes)}{listed}"
        return f"{self.what}: {' '.join(self.flags)} {self.said}".replace("  ", " ").strip()


def shown(expected: Outcome) -> str:
    """Return an expected outcome in the words of `Got.shown`."""
    if isinstance(expected, Read):
        return Got("read", classes=expected.classes, records=expected.records, subjects=expected.subjects).shown()
    if isinstance(expected, Asked):
        return f"asked: {expected.flag} {expected.said}".strip()
    return f"refused: {expected.said}"


def fault(expected: Outcome, got: Got) -> str:
    """Return what is not as expected, or "". Numbers that a way does not report are not compared."""
    wanted = {"Read": "read", "Asked": "asked", "Refused": "refused"}[type(expected).__name__]
    if got.what != wanted and not (wanted == "refused" and got.what == "asked"):
        return f"{got.what} instead of {wanted}"
    if wanted != "read" and got.declared:
        return "it was declared before"
    if expected.said.casefold() not in got.said.casefold():
        return f"{expected.said!r} is not said"
    if isinstance(expected, Asked) and not any(flag.split()[0] == expected.flag for flag in got.flags):
        return f"{expected.flag} is not named"
    if isinstance(expected, Read):
        for name in ("classes", "records", "subjects"):
            value = getattr(got, name)
            if value is not None and value != getattr(expected, name):
                return f"{name} are {value}"
        if expected.looks is not None and got.images is not None:
            return expected.looks(got.images)
    return ""


def _obscura(words: list[str], environment: dict[str, str], out: Path) -> None:
    for name in [name for name in os.environ if name.startswith("OBSCURA_")]:
        del os.environ[name]
    os.environ.update(environment)
    for number, name in ((1, "stdout"), (2, "stderr")):
        with (out / name).open("wb") as file:
            os.dup2(file.fileno(), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["obscura", *words]
    command_line()


class _Watched(Datasets):
    package: Package | None = None

    def send(self, dataset: Dataset, package: Package, on_bytes: Any = lambda _done, _total: None) -> Dataset:
        self.package = package
        return super().send(dataset, package, on_bytes)


class Ways:
    """Pushes inputs to one service."""

    def __init__(self, client: Client, data_dir: Path, folder: Path) -> None:
        self._client, self._data_dir, self._folder = client, data_dir, folder
        self._accounts = {
            unit: client.accounts.create(name=name, owner="benchmark", epsilon=10, delta=1e-6, unit=unit).id  # type: ignore[arg-type]  # a unit
            for unit, name in ACCOUNTS.items()
        }
        self._page: Any = None

    def in_python(self, given: Input, place: Path) -> Got:
        datasets, lines = _Watched(self._client.transport), list[str]()
        whose = {"public": True} if given.unit == "public" else {"account_id": self._accounts[given.unit]}
        before = self._known()
        try:
            made = datasets.push(place, **whose, **given.arguments(self._folder), say=lines.append)  # type: ignore[arg-type]
        except ObscuraClientError as error:
            flags = error.flags if isinstance(error, ChoiceNeeded) else ()
            said = "\n".join([*lines, str(error.args[0])])  # names flags, like the command line
            return Got("asked" if flags else "refused", said, flags, declared=len(self._known() - before))
        except Exception as error:
            return Got("failed", f"{type(error).__name__}: {error}", declared=len(self._known() - before))
        package = datasets.package
        assert package is not None
        return Got(
            "read",
            "\n".join(lines),
            classes=tuple(made.classes),
            records=package.private_records,
            subjects=package.private_subjects,
            declared=1,
            images=images_of(package) if isinstance(given.expected, Read) and given.expected.looks else None,
        )

    def by_command_line(self, given: Input, place: Path) -> Got:
        whose = ["--public"] if given.unit == "public" else ["--account", ACCOUNTS[given.unit]]
        words = ["datasets", "push", str(place), *whose, *given.flags(self._folder), "--json"]
        before, out = self._known(), self._folder / "output"
        out.mkdir(exist_ok=True)
        here = {"OBSCURA_DATA_DIR": str(self._data_dir), "XDG_CONFIG_HOME": str(self._folder), "NO_COLOR": "1"}
        running = FORKS.Process(target=_obscura, args=(words, here, out))
        running.start()
        running.join(CLI_SECONDS_MAX)
        if running.exitcode is None:
            running.kill()
        declared = len(self._known() - before)
        stdout, stderr = ((out / name).read_text("utf-8") for name in ("stdout", "stderr"))
        try:
            answer = json.loads(stdout)
        except json.JSONDecodeError:
            return Got("failed", (stdout + stderr)[-2000:], declared=declared)
        if "Traceback" in stderr:
            return Got("failed", stderr[-2000:], declared=declared)
        if running.exitcode:
            flags = tuple(answer["error"].get("flags", ()))
            said = f"{stderr}\n{answer['error']['message']}"
            return Got("asked" if flags else "refused", said, flags, declared=declared)
        counted = re.search(r"(?:^|: )([\d,]+) images?\b", stderr, flags=re.MULTILINE)
        records = int(counted[1].replace(",", "")) if counted else None
        subjects = given.expected.subjects if isinstance(given.expected, Read) else None  # not in the output
        return Got("read", stderr, (), tuple(answer["classes"]), records, subjects, declared)

    def in_browser(self, given: Input, place: Path) -> Got:
        from playwright.sync_api import expect  # not without a browser

        assert given.browser is not None
        page, before = self._page, self._known()
        page.goto("/datasets/new")
        page.set_input_files("#file", str(place))
        expect(page.locator("[data-found]")).to_contain_text(re.compile("filled in|datasets push"))
        page.locator("[data-more]").evaluate("each => (each.open = true)")
        page.select_option("#account_id", self._accounts.get(given.unit, "public"))
        page.select_option("#fit", "exact")  # conversion is tested on the owner's machine
        usual = {"classes": "normal, sick", "height": "16"}  # where the page found nothing
        left = {name: value for name, value in usual.items() if not page.input_value(f"#{name}")}
        fields = {"name": given.name, **left, **given.browser.fields}
        for name, value in fields.items():
            page.fill(f"#{name}", value) if name != "channels" else page.select_option("#channels", value)
        page.click("main form[data-declare] button[type=submit]")
        page.locator("[data-problem]:visible, p.eyebrow").first.wait_for()
        declared = self._known() - before
        if page.url.endswith("/new"):
            said = page.inner_text("[data-problem]") + " " + " ".join(page.locator("[data-fault]").all_inner_texts())
            return Got("refused", said.strip(), declared=len(declared))
        made = self._client.datasets.get(page.url.rpartition("/")[2])
        expected = given.browser.expected
        counts = (expected.records, expected.subjects) if isinstance(expected, Read) else (None, None)
        what = "read" if made.state == "ready" else "refused"
        return Got(what, page.inner_text("main"), (), tuple(made.classes), *counts, len(declared))

    @contextmanager
    def browser(self) -> Iterator[Callable[[Input, Path], Got]]:
        """Open Chromium and sign in."""
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
            self._page = chromium.new_page(base_url=str(self._client.transport.base_url))
            self._page.set_default_timeout(BROWSER_MS)
            self._page.goto("/login")
            self._page.fill("#key", (self._data_dir / "admin.key").read_text("ascii").strip())
            self._page.click("main button[type=submit]")
            self._page.wait_for_url("**/")
            yield self.in_browser
            chromium.close()

    def _known(self) -> set[str]:
        return {dataset.id for dataset in self._client.transport.pages(Dataset, Dataset.PATH)}


def images_of(package: Package) -> ImageInput:
    """Return the images that a package sends."""
    content = io.BytesIO(b"".join(package.open()))
    if package.format == "npz":
        with np.load(content, allow_pickle=False) as arrays:
            names = [package.classes[int(label)] for label in arrays["labels"]]
            return list(zip(names, arrays["images"], strict=True))
    if package.format == "idx":
        with zipfile.ZipFile(content) as archive:
            images, labels = (archive.read(name) for name in archive.namelist()[:2])
        size = (package.private_records, package.height, package.width)
        names = [package.classes[label] for label in labels[8:]]
        return list(zip(names, np.frombuffer(images, np.uint8, offset=16).reshape(size), strict=True))
    found = []
    with zipfile.ZipFile(content) as archive:
        for name in archive.namelist():
            with Image.open(io.BytesIO(archive.read(name))) as image:
                found.append((name.rpartition("/")[0], np.asarray(image)))
    return found
