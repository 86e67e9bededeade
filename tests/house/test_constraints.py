"""The pinned versions are complete, have no addresses, and are the installed ones."""

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.installed import closure

ROOT = Path(__file__).resolve().parents[2]
SERVER = ("service", "workers", "models", "privacy")
OPTIONAL = ("hf", "torch", "dicom", "nifti")
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
    version = pins()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version)


def test_every_package_that_setup_installs_is_pinned_and_installed_at_that_version():
    pinned = pins()
    installed = {name: found.version.partition("+")[0] for name, found in closure(declared()).items()}
    assert set(installed) - set(pinned) == set()
    differing = {name: version for name, version in installed.items() if pinned[name] != version}
    assert differing == {}, "run make setup"
