"""Two wheels, of which the library works without the server; pinned versions are complete and the installed ones."""

import ast
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from obscura.client.local_service import running_at
from tests.installed import OURS, closure, link_packages
from tests.obscura.small import SMALL_DATALENS
from tests.pictures import write_folders
from tests.together import wait_until

ROOT = Path(__file__).resolve().parents[2]
BUILD = "from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
SERVER = ("service", "workers", "models", "privacy")
LIBRARY, SERVER_NAME = OURS
Run = Callable[..., subprocess.CompletedProcess[str]]


def build(project: Path, wheels: Path) -> Path:
    command = [sys.executable, "-c", f"import sys; {BUILD}", str(wheels)]
    built = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    return wheels / built.stdout.split()[-1]


def site_packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def install(environment: Path, others: Path | str, *arguments: Path | str) -> None:
    """Create an environment that sees a folder of packages, and install wheels without an index."""
    venv.create(environment, with_pip=False, symlinks=True)
    (site_packages(environment) / "others.pth").write_text(f"{others}\n", "utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", *map(str, arguments)], check=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two fresh environments: `venv` has the library alone, `server` both wheels."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    for name in ("obscura", *SERVER, "alembic"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / "service/site/how-to").mkdir(parents=True, exist_ok=True)
    (source / "service/site/how-to/page.html").write_text("as built by make docs", "utf-8")
    library, server = build(source / "obscura", place), build(source, place)
    shutil.rmtree(source)
    alone = ("--no-deps", "--no-compile", "--ignore-installed", library)
    install(place / "venv", link_packages(place / "client", LIBRARY), *alone)
    install(place / "server", str(metadata.distribution("sqlalchemy").locate_file("")), *alone, server)
    return place


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OBSCURA_", "PYTHONPATH"))}
    return kept | variables


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Run:
    """Run a command of a fresh environment, in an empty folder."""

    def run(
        *arguments: str, within: str = "venv", code: int = 0, sent: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        command = [str(place / within / "bin" / arguments[0]), *arguments[1:]]
        home = environment(HOME=str(tmp_path / "home"), XDG_CONFIG_HOME=str(tmp_path / "home"), **variables)
        (tmp_path / "empty").mkdir(exist_ok=True)
        ran = subprocess.run(
            command, cwd=tmp_path / "empty", env=home, input=sent, capture_output=True, text=True, check=False
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran

    return run


def test_both_wheels_bring_the_licence(place):
    found = {path.parent.parent.name for path in site_packages(place / "server").glob("*.dist-info/licenses/LICENSE")}
    version = metadata.version(LIBRARY)
    assert found == {f"obscura_images-{version}.dist-info", f"obscura_images_server-{version}.dist-info"}


def test_the_server_wheel_resolves_to_our_library_without_an_index(place, tmp_path):
    """The name `obscura` on the package index is not ours: a dependency on it would install another package."""
    (wheel,) = place.glob("obscura_images_server-*.whl")
    options = ("--dry-run", "--find-links", place, "--report", tmp_path / "report.json", wheel)
    install(tmp_path / "environment", link_packages(tmp_path / "others", SERVER_NAME), *options)
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    found = {item["metadata"]["name"]: item["download_info"]["url"] for item in report["install"]}
    assert set(found) == {LIBRARY, SERVER_NAME}
    assert all(url.startswith("file://") for url in found.values())


def test_the_library_is_one_package_and_needs_none_of_the_server(run, place):
    tops = {path.name for path in site_packages(place / "venv").iterdir() if path.suffix not in (".pth", ".dist-info")}
    assert tops == {"obscura"}
    version = metadata.version(LIBRARY)
    assert run("obscura", "--version").stdout == f"obscura {version}\n"
    assert not {"up", "ledger", "openapi"} & {*run("obscura", "--help").stdout.split()}
    code = "import sys, obscura; print(obscura.__file__, {'fastapi', 'sqlalchemy', 'torch'} & set(sys.modules))"
    printed = run("python", "-c", code).stdout
    assert printed.startswith(str(place / "venv"))
    assert printed.endswith("set()\n")


@pytest.mark.parametrize("package", ["obscura", *SERVER])
def test_every_module_of_the_repository_is_in_a_wheel(place, package):
    installed = site_packages(place / ("venv" if package == "obscura" else "server")) / package
    here, there = ({path.relative_to(top) for path in top.rglob("*.py")} for top in (ROOT / package, installed))
    assert there == here


@pytest.mark.parametrize(
    ("command", "package"),
    [
        (["obscura", "up"], "obscura-images-server[worker]"),
        (["obscura", "ledger", "status"], "obscura-images-server"),
        (["obscura", "openapi"], "obscura-images-server"),
        (
            ["obscura", "quickstart", "pets", "--classes", "cat", "--yes", "--at-most", "100"],
            "obscura-images-server[worker]",
        ),
        (["python", "-c", "import obscura; obscura.local('data')"], "obscura-images-server[worker]"),
    ],
    ids=["up", "ledger", "openapi", "quickstart", "local"],
)
def test_without_the_server_its_package_is_named(run, tmp_path, command, package):
    write_folders(tmp_path / "empty" / "pets", {"cat": 1})
    failed = run(*command, code=1)
    assert f"Run: pip install '{package}'" in failed.stderr
    if command[1] in ("up", "ledger", "openapi"):
        assert (failed.stderr.count("\n"), failed.stdout) == (1, "")


@pytest.fixture(scope="module")
def served(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """The address and the key of a service that runs from the server's wheel."""
    folder = tmp_path_factory.mktemp("served")
    data = folder / "data"
    command = [str(place / "server/bin/obscura"), "--data-dir", str(data), "up", "--port", "0"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(OMP_NUM_THREADS="1"), stdout=subprocess.DEVNULL
    ) as process:
        try:
            wait_until(lambda: running_at(data), "the service serves", seconds=120)
            yield tuple((data / name).read_text("ascii").strip() for name in ("service.url", "admin.key"))
        finally:
            process.terminate()


@pytest.mark.slow
def test_the_library_works_with_a_service_from_the_other_wheel(run, served, tmp_path):
    url, token = served
    pets = write_folders(tmp_path / "pets", {"cat": 20, "dog": 20})
    run("obscura", "login", url, sent=f"{token}\n")
    account = ["--owner", "us", "--epsilon", "3", "--delta", "1e-4", "--unit", "record"]
    run("obscura", "accounts", "create", "pets", *account)
    run("obscura", "datasets", "push", str(pets), "--account", "pets", "--at-most", "40", "--size", "8", "--grey")
    wanted = ["pets", "--recipe", "datalens", "--epsilon", "1"]
    for name, value in SMALL_DATALENS.items():
        wanted += ["--option", f"{name}={json.dumps(value)}"]
    assert "cost" in run("obscura", "plan", *wanted).stdout
    job = json.loads(run("obscura", "train", *wanted, "--wait", "--json").stdout)
    made = tmp_path / "made"
    run("obscura", "download", job["release_id"], "--count", "10", "--unpack", "--out", str(made))
    assert len(list(made.glob("*/*.png"))) == 10


@pytest.mark.slow
def test_packages_of_the_users_own_beside_the_script_change_nothing(run, served, tmp_path):
    url, token = served
    folder = tmp_path / "study"
    for name in SERVER:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("MINE = True\n", "utf-8")
    (folder / "script.py").write_text(
        "import sys, obscura, models, privacy, service, workers\n"
        "assert models.MINE and privacy.MINE and service.MINE and workers.MINE\n"
        "with obscura.connect(*sys.argv[1:3]) as service:\n"
        "    print([account.name for account in service.accounts.list()])\n"
        "with obscura.local(sys.argv[3]) as service:\n"
        "    print(list(service.releases.list()))\n",
        "utf-8",
    )
    ran = run("python", str(folder / "script.py"), url, token, str(tmp_path / "data"), within="server")
    assert ran.stdout.splitlines()[-1] == "[]"
    run("obscura", "--url", url, "--token", token, "accounts", "list", within="server", PWD=str(folder))


def test_migrations_come_with_the_wheel(run, place):
    code = "import sys; from service.db.schema import upgrade_schema; upgrade_schema(sys.argv[1])"
    run("python", "-c", code, f"sqlite:///{place}/obscura.db", within="server")
    with sqlite3.connect(place / "obscura.db") as database:
        (newest,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
    assert newest == max(path.name[:4] for path in (ROOT / "alembic" / "versions").glob("0*.py"))


def test_the_documentation_comes_with_the_wheel_if_it_was_built(place):
    assert (site_packages(place / "server") / "service/site/how-to/page.html").is_file()


def test_installed_packages_say_that_they_are_typed(place):
    packages = {path.parent.name for path in site_packages(place / "server").glob("*/__init__.py")}
    typed = {path.parent.name for path in site_packages(place / "server").glob("*/py.typed")}
    assert typed == packages == {"obscura", *SERVER}


# --- pinned versions --------------------------------------------------------------------------------------------------


OPTIONAL = ("hf", "torch", "dicom", "nifti", "pandas")
FOUND_BY_OTHERS = {"python-gdcm"}  # a decoder, which pydicom looks for by itself
PIN = re.compile(r"""
    ^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[0-9][A-Za-z0-9.]*)  # no address, no label of a local build
    (?:\ ;\ (?P<marker>[^\\\n]+?))?
    (?P<hashes>(?:\ \\\n\ {4}--hash=sha256:[0-9a-f]{64})*)$
""", re.MULTILINE | re.VERBOSE)  # fmt: skip


def pins(path: str = "constraints.txt") -> dict[str, str]:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not re.sub(r"^#.*$", "", PIN.sub("", text), flags=re.MULTILINE).strip(), "each line is a comment or a pin"
    hashed = {bool(match["hashes"]) for match in PIN.finditer(text)}
    assert hashed == {path != "constraints.txt"}, "what an image installs has hashes"
    return {canonicalize_name(match["name"]): match["version"] for match in PIN.finditer(text)}


def projects() -> tuple[dict[str, Any], dict[str, Any]]:
    library, server = (
        tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for path in (ROOT / "obscura" / "pyproject.toml", ROOT / "pyproject.toml")
    )
    return library, server


def declared(*parts: str) -> list[Requirement]:
    """Return the requirements of parts (client, hf, torch, server, s3, oidc, worker, dev); without any, of all."""
    library, server = projects()
    groups = {
        "client": library["dependencies"],
        **library["optional-dependencies"],
        "server": server["dependencies"],
        **server["optional-dependencies"],
    }
    found = [Requirement(line) for part in parts or groups for line in groups[part]]
    return [requirement for requirement in found if requirement.name != "obscura-images"]


def imported(packages: tuple[str, ...]) -> set[str]:
    """Return the distributions whose modules these packages import, at the top or inside a function."""
    modules: set[str] = set()
    for package in packages:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    modules |= {name.name.partition(".")[0] for name in node.names}
                elif isinstance(node, ast.ImportFrom):
                    modules.add(str(node.module).partition(".")[0])
    owners = metadata.packages_distributions()
    foreign = modules - sys.stdlib_module_names - {"obscura", *SERVER}
    return {canonicalize_name(owner) for module in foreign for owner in owners.get(module, [module])}


@pytest.mark.parametrize(
    ("packages", "parts", "extras"),
    [
        (("obscura",), ("client", *OPTIONAL), ()),
        (("service",), ("server", "s3", "oidc"), ()),
        (SERVER, ("server", "worker"), ("s3", "oidc")),
    ],
    ids=["library", "web", "server"],
)
def test_what_is_imported_is_declared_and_the_reverse(packages, parts, extras):
    names = {canonicalize_name(requirement.name) for requirement in declared(*parts, *extras)}
    found = imported(packages) - {"obscura-images", "obscura-images-server"}
    assert found <= names
    if packages != ("service",):  # the web process shares its list with other packages
        needed_names = {canonicalize_name(requirement.name) for requirement in declared(*parts)}
        assert needed_names - FOUND_BY_OTHERS <= found


def test_the_server_needs_the_library_of_its_own_version():
    library, server = projects()
    assert library["version"] == server["version"]
    assert f"obscura-images=={library['version']}" in server["dependencies"]


@pytest.mark.parametrize("requirement", declared(), ids=lambda requirement: requirement.name)
def test_every_declared_dependency_is_pinned_within_its_range(requirement):
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_every_package_that_setup_installs_is_pinned_and_installed_at_that_version():
    pinned = pins()
    installed = {name: found.version.partition("+")[0] for name, found in closure(declared()).items()}
    assert set(installed) - set(pinned) == set()
    differing = {name: version for name, version in installed.items() if pinned[name] != version}
    assert differing == {}, "run make setup"
