"""One program that draws from a release without this repository: the project's own code, gathered into one file.

Of the network of the release and of `models.standalone` it takes every definition that is reached, as it stands in
this package, so there is no second copy that could differ. It reads the modules as text: it needs no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_PACKAGE = f"{_FOLDER.name}."
_LEFT_OUT = "save"  # a method of every network, which writes a release's files and needs safetensors

# By "network" in the description of a release: where it is defined, and the names of its class and its configuration.
NETWORKS: Mapping[str | None, tuple[str, str, str]] = {
    None: ("generator", "Generator", "GeneratorConfig"),
    "dcgan": ("dcgan", "DcganGenerator", "DcganConfig"),
    "edm": ("edm", "EdmDenoiser", "EdmConfig"),
    "textured": ("textured", "TexturedGenerator", "TexturedConfig"),
}

_HEAD = '''"""Draw synthetic images from the released generator beside this file. It needs torch, and nothing else.

    python load_generator.py --count 100 --out images/

or, from Python,

    from load_generator import CLASSES, draw, load
    for images, labels in draw(load(), count=100, seed=0):  # (b, h, w, c) uint8, and (b,)
        ...

The same seed, classes and count give the same pixels as the service that published the release, with the same version
of torch and on the same kind of processor. `generator.safetensors` and `generator.json` must lie beside this file.
"""
'''
_TAIL = '''

CLASSES = {classes}
FOLDERS = {folders}


def load(folder: Path = Path(__file__).parent) -> {network}:
    """Read the released generator from the files in a folder."""
    generator = {network}({config}(**read_config(folder)))
    fill(generator, folder)
    return generator


if __name__ == "__main__":
    main(load, CLASSES, FOLDERS)
'''


def bundle(network: str | None, classes: Sequence[str], folders: Sequence[str]) -> str:
    """Return the program for a release.

    Args:
        network: as its description names it.
        classes: their names, in label order.
        folders: name of each class's folder.

    Raises:
        ValueError: no such network is known.
    """
    if network not in NETWORKS:
        raise ValueError(f"the generator is a {network!r}; there is a program for {', '.join(map(str, NETWORKS))}")
    _, name, config = NETWORKS[network]
    tail = _TAIL.format(classes=ascii(tuple(classes)), folders=ascii(tuple(folders)), network=name, config=config)
    return _HEAD + _gathered(network) + tail


@cache
def _gathered(network: str | None) -> str:
    """Return imports and definitions, those that others use first."""
    module, name, config = NETWORKS[network]
    found = _Found()
    for root in (name, config):
        found.reach(module, root)
    for root in ("read_config", "fill", "draw", "main"):
        found.reach("standalone", root)
    owners: dict[str, str] = {}
    parts = []
    for each in found.order:
        source = _read(each)
        parts.append("\n\n" + source.about)
        for node in source.nodes:
            names = [one for one in _defined(node) if (each, one) in found.reached]
            for one in names:
                if owners.setdefault(one, each) != each:
                    raise ValueError(f"{one} is defined in models/{each}.py and in models/{owners[one]}.py: rename one")
            if names:
                parts.append(("" if isinstance(node, ast.Assign) else "\n\n") + source.text(node))
    imports = sorted(found.imports, key=lambda line: (line.startswith("from"), line))
    return "\n".join(["", "from __future__ import annotations", "", *imports, *parts, ""])


@dataclass
class _Found:
    """What was reached so far: definitions as (module, name), the modules in the order of use, and imports."""

    reached: set[tuple[str, str]] = field(default_factory=set)
    order: list[str] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)

    def reach(self, module: str, name: str) -> None:
        """Take a definition, and all that it uses."""
        source = _read(module)
        if (module, name) in self.reached:
            return
        if name in source.foreign:
            self.imports.add(source.foreign[name])
        elif name in source.ours:
            self.reach(source.ours[name], name)
        elif name in source.definitions:
            self.reached.add((module, name))
            for used in _used(source.definitions[name]):
                self.reach(module, used)
            if module not in self.order:
                self.order.append(module)


@dataclass(frozen=True)
class _Source:
    """A module of this package as text, and what its names mean."""

    about: str  # its docstring, as a comment
    lines: list[str]
    nodes: list[ast.stmt]
    definitions: dict[str, ast.stmt]
    ours: dict[str, str]  # name -> module of this package that it is imported from
    foreign: dict[str, str]  # name -> statement that imports it from elsewhere

    def text(self, node: ast.stmt) -> str:
        """Return a definition as it stands, without the methods that are left out."""
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
        last = node.end_lineno or node.lineno
        skipped = {line for part in _skipped(node) for line in range(part.lineno, (part.end_lineno or 0) + 1)}
        kept = [self.lines[line - 1] for line in range(first, last + 1) if line not in skipped]
        return "\n".join(kept).rstrip()


@cache
def _read(module: str) -> _Source:
    text = (_FOLDER / f"{module}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    said = (ast.get_docstring(tree) or module).splitlines()
    about = "\n".join(f"# {line}".rstrip() for line in said)
    source = _Source(about, text.splitlines(), tree.body, {}, {}, {})
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            for one in node.names:
                if str(node.module).startswith(_PACKAGE):
                    source.ours[one.name] = str(node.module).removeprefix(_PACKAGE)
                else:
                    source.foreign[one.name] = f"from {node.module} import {one.name}"
        elif isinstance(node, ast.Import):
            source.foreign.update({one.name: f"import {one.name}" for one in node.names})
        else:
            source.definitions.update(dict.fromkeys(_defined(node), node))
    return source


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def _skipped(node: ast.stmt) -> list[ast.stmt]:
    body = node.body if isinstance(node, ast.ClassDef) else []
    return [part for part in body if isinstance(part, ast.FunctionDef) and part.name == _LEFT_OUT]


def _used(node: ast.AST) -> Iterator[str]:
    """Yield the names that a definition reads, in order."""
    if isinstance(node, ast.Name):
        yield node.id
    skipped = _skipped(node) if isinstance(node, ast.stmt) else []
    for part in ast.iter_child_nodes(node):
        if part not in skipped:
            yield from _used(part)
