"""One program that generates images from a release without this repository: files of `models`, concatenated.

The files are the network's own, those that it imports from this package, and `portable/drawing.py`. Their imports of
each other are removed. They are read as text, so this module needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_FOLDER = Path(__file__).parent
_OURS = re.compile(r"^from models\.([\w.]+) import .*\n", flags=re.MULTILINE)
_FUTURE = "from __future__ import annotations\n"

# By "network" in a release's description: the file, and the names of the class and its configuration.
PROGRAMS: Mapping[str | None, tuple[str, str, str]] = {
    None: ("portable.generator", "Generator", "GeneratorConfig"),
    "conditional_dcgan": ("portable.conditional_dcgan", "ConditionalDcganGenerator", "ConditionalDcganConfig"),
    "dcgan": ("portable.dcgan", "DcganGenerator", "DcganConfig"),
    "edm": ("portable.edm", "EdmDenoiser", "EdmConfig"),
    "guided": ("portable.guided", "GuidedGenerator", "GuidedConfig"),
    "selected": ("portable.selected", "SelectedPictures", "SelectedConfig"),
    "textured": ("portable.textured", "TexturedGenerator", "TexturedConfig"),
}

_HEAD = '''"""Draw synthetic images from the released generator beside this file. It needs torch, and nothing else.

    python load_generator.py --count 100 --out images/

or, from Python,

    from load_generator import CLASSES, draw, load
    for images, labels in draw(load(), count=100, seed=0):  # (b, h, w, c) uint8, and (b,)
        ...

The same seed, classes and count give the same pixels as the service, with the same torch version and kind of processor.
`generator.safetensors` and `generator.json` must lie beside this file.
"""
'''
_TAIL = '''

CLASSES = {classes}
FOLDERS = {folders}
PROVENANCE = {texts}  # marks images as synthetic (IPTC), without a signature


def load(folder: Path = Path(__file__).parent) -> {network}:
    """Read the released generator from the files in a folder."""
    described = json.loads((folder / "generator.json").read_text(encoding="utf-8"))
    generator = {network}({config}(**described["config"]))
    generator.load_state_dict(read_tensors(folder / "generator.safetensors"))
    return generator.eval()


if __name__ == "__main__":
    main(load, CLASSES, FOLDERS, PROVENANCE)
'''


def write_program(network: str | None, classes: Sequence[str], folders: Sequence[str], texts: Mapping[str, str]) -> str:
    """Return the program that generates images from a release of this network, into one folder per class.

    Each PNG contains `texts`, by keyword.
    """
    if network not in PROGRAMS:
        raise ValueError(f"the generator is a {network!r}; there are programs for {', '.join(map(str, PROGRAMS))}")
    module, name, config = PROGRAMS[network]
    files: dict[str, str] = {}
    for each in (module, "portable.drawing"):
        files |= dict(_needed(each))  # keep files that are already in the list
    lists = {"classes": ascii(tuple(classes)), "folders": ascii(tuple(folders)), "texts": ascii(dict(texts))}
    tail = _TAIL.format(**lists, network=name, config=config)
    return "\n\n".join([_HEAD + "\n" + _FUTURE, *files.values()]) + tail


def _needed(module: str) -> Iterator[tuple[str, str]]:
    text = (_FOLDER / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    for other in _OURS.findall(text):
        yield from _needed(other)
    yield module, _OURS.sub("", text).replace(_FUTURE, "")
