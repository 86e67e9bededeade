"""Check the language of documentation, docstrings and strings: `python -m scripts.prose`. Part of `make check`.

It checks every sentence of pages, docstrings and string literals for three faults: words that we no longer use,
openings that hide the actor (except "Let x be" in mathematics), and more than WORDS_MAX words. `ALLOWED` lists
exceptions.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from proselint.registry.checks import Check, CheckResult, types

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("obscura", "service", "workers", "models", "privacy", "benchmarks", "scripts")
WORDS_MAX = 25
PREFERRED = {
    "for ever": "forever",
    "hyper-parameter search": "sweep",
    "picture": "image",
    "pictures": "images",
    "takes none": "accepts none",
    "twice is as once": "idempotent",
}
DIALECT = (
    r"nobody (?:else )?(?:asked|says|knows)",
    r"somebody (?:there|gone)",
    r"stands? (?:in|there|on)",
    r"tells? (?:it|them|whether|of|that|how|what|why)",
    r"what (?:becomes|people see|is said|is drawn)",
    r"whatever is said",
)
OPENINGS = r"^(?:Nor|Of what|Of whom|Whoever|What|Whether|Let (?:a|\W*\w{2,})|For it|Twice|Neither)\b"
# Beginnings of sentences that may break a rule, with the reason.
ALLOWED = {
    "citeAs column": "a vocabulary",
    "pictures:": "the name of a tensor in released files",
    "[pipeline:main]": "configuration",
    "what (?:becomes": "a rule of this file",
    "two iterations of votes for public pictures": "a name in docs/research/canary_audit.json",
    "content published under a key, or about": "a table",
}
_CODE = re.compile(r"\s*(?:SELECT|DELETE|import|\[\w+:|\(\w+ =)")  # SQL, Python, ini files and constraints


def sentences_too_long(text: str, check: Check) -> Iterator[CheckResult]:
    words = len(text.split())
    if words > WORDS_MAX:
        yield CheckResult(check.path, check.message.format(words), (0, len(text)), None)


CHECKS = (
    Check(types.PreferredForms(PREFERRED), path="words", message="write {}, not {}"),
    Check(types.Existence(DIALECT), path="dialect", message="rewrite: {}"),
    Check(types.ExistenceSimple(OPENINGS), path="opening", message="begin with the actor or a verb, not {}"),
)
LENGTH = Check(sentences_too_long, path="length", message=f"{{}} words; the limit is {WORDS_MAX}")


def pages() -> Iterator[tuple[str, int, str]]:
    """Yield path, line and text of every sentence on pages, without code, tables, quotations and addresses."""
    research = ROOT / "docs" / "research"
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        if research in path.parents:
            continue
        text = path.read_text("utf-8")
        text = re.sub(r"^```.*?^```", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
        text = re.sub(r"^[>|].*$", "", text, flags=re.MULTILINE)
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
        for match in re.finditer(r"(?:^.+\n?)+", text, flags=re.MULTILINE):
            line = text[: match.start()].count("\n") + 1
            for sentence in _sentences(re.sub(r"\n(?=[*\d#-])", "\n\n", match[0])):
                yield str(path.relative_to(ROOT)), line, sentence


def strings() -> Iterator[tuple[str, int, str]]:
    """Yield path, line and text of every sentence in docstrings and string literals."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
                if text.count(" ") > 3 and not _CODE.match(text):
                    for sentence in _sentences(text):
                        yield str(path.relative_to(ROOT)), node.lineno, sentence


def _sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split()))


def faults() -> Iterator[str]:
    for path, line, sentence in (*pages(), *strings()):
        if any(sentence.startswith(start) for start in ALLOWED):
            continue
        for check in (*CHECKS, LENGTH):
            for result in check.check(sentence):
                yield f"{path}:{line}: {result.message}: {sentence[:120]}"


def main() -> None:
    found = list(faults())
    sys.stdout.write("".join(f"{fault}\n" for fault in found))
    sys.exit(f"prose: {len(found)} sentences to rewrite" if found else 0)


if __name__ == "__main__":
    main()
