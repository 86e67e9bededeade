"""Installed distributions, and folders that hold some of them alone."""

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = ("obscura-images", "obscura-images-server")


def closure(requirements: Iterable[Requirement]) -> dict[str, metadata.Distribution]:
    """Return the installed distributions that requirements need, directly or not, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        is_known, extras = name in found, requirement.extras or {""}
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for line in () if is_known and not requirement.extras else found[name].requires or ():
            child = Requirement(line)
            if child.marker is None or any(child.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(child)
    return found


def link_packages(folder: Path, distribution: str) -> Path:
    """Fill a new folder with links to all that a distribution needs, and to the distribution unless it is ours."""
    needed = closure([Requirement(distribution)]).items()
    files = [(found, file.parts[0]) for name, found in needed if name not in OURS for file in found.files or ()]
    folder.mkdir()
    for path in {Path(str(found.locate_file(top))) for found, top in files if top not in ("..", "__pycache__")}:
        (folder / path.name).symlink_to(path)
    return folder
