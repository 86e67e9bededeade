"""The code blocks of README.md and docs: which are run, which are not and why, and values for their placeholders.

A block without a language holds shell commands. Those and blocks of Python are run by `test_examples.py`, apart from
what is named in `NOT_RUN`. All other languages are not commands, and stand in `SHOWN`.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Run one after the other, in this order, against one service. The blocks of all other documents are run by themselves.
TOGETHER = tuple(
    f"docs/{page}.md"
    for page in (
        *("reference/api-conventions", "how-to/tune-with-sweeps", "how-to/use-synthetic-images", "how-to/rare-classes"),
        *("explanation/ledger-and-receipts", "operate/troubleshooting", "operate/backup-and-restore"),
        *("how-to/delete-and-withdraw", "how-to/approve-changes", "how-to/upload-images", "how-to/add-new-people"),
    )
)

# What a command begins with, and why it is not run.
NOT_RUN = {
    "make demo": "takes minutes and the real Fashion-MNIST; tests/service/cli/test_quickstart.py runs it small",
    "make test": "is what runs this",
    "pip install ./obscura '.[worker]'": "installs gigabytes; make setup has done it, in CI in a fresh environment",
    "pip install --constraint constraints.txt 'obscura-images-server[": "make setup has installed it, from a checkout",
    "aws s3 mv": "needs another package; tests/service/storage/contract.py moves back what was put away",
    "rsync --archive --delete": "needs a second machine; the courier of benchmarks/chaos_storage.py does the same",
    "obscura up": "the test itself runs it, on a free port",
    "curl -s $URL/v1/previews": "trains classifiers for minutes; tests/workers/train/test_previewing.py runs it",
    'curl -sN $URL/v1/jobs/job_.../events -H "$AUTH"    # until its job has ended': "of the preview",
    "obscura webhooks test": "asks a server elsewhere; tests/service/api/routes/test_admins.py runs it",
    "obscura evaluate": "trains classifiers, which takes minutes; tests/service/cli/test_commands.py runs it small",
    "obscura plan images --epsilon 1 --preview": "trains classifiers for minutes; "
    "tests/workers/train/test_previewing.py runs it",
    "obscura sweep": "trains and measures six times; tests/service/cli/test_jobs.py runs it small",
    **dict.fromkeys(
        [f"obscura releases {verb}" for verb in ("share", "unshare", "publish")],
        "needs two departments and a release; tests/service/api/routes/test_shares.py runs it",
    ),
    "python -c '": "opens files with readers of others; tests/workers/train/test_formats.py does that",
    "obscura quickstart": "tests/service/cli/test_quickstart.py runs it on digits and scans, and compares what it says",
    "obscura datasets push scans/ --account patients --at-most 2000 --subjects-at-most 700": "needs DICOM files; "
    "tests/obscura/preparing/test_dicom.py makes such folders",
    "openssl rand": "needs another program",
    "obscura datasets push people-2026/": "needs pictures of people; tests/service/cli/test_datasets.py pushes some",
    "obscura subjects withdraw": "needs people; tests/service/cli/test_datasets.py lets some withdraw",
    "obscura datasets push volumes/ --account patients --slices axial": "needs NIfTI files; "
    "tests/obscura/preparing/layouts/test_idx_and_nifti.py makes such folders",
    "cp .env.example .env": "for the next one",
    "sudo install": "makes a folder of the host for another user",
    "docker compose": "needs Docker; tests/house/test_deployment.py checks the file",
    "docker build": "needs Docker",
    "docker push": "needs Docker and a registry",
    "kubectl": "needs a cluster; tests/house/test_deployment.py checks the manifests",
    "python -m benchmarks.in_pieces": "takes hours of a GPU; tests/benchmarks run it small",
    "python -m benchmarks.utility": "takes a quarter of an hour a secret; tests/benchmarks run its training small",
}
# Blocks of Python by their document.
PYTHON_NOT_RUN = {
    "docs/tutorials/command-line.md": "tests/service/cli/test_quickstart.py runs it and compares what it says",
}
# Blocks that hold no commands: document, language and beginning, and what holds them to the truth.
SHOWN = {
    ("docs/operate/deploy-kubernetes.md", "yaml", "namespace: obscura"): "tests/house/test_deployment.py builds it",
    ("docs/operate/monitor.md", "yaml", "scrape_configs"): "tests/service/test_metrics.py compares it with the alerts",
    ("docs/reference/api-conventions.md", "text", "HTTP/1.1 409"): "an answer, shortened; test_examples.py asks for it",
    ("docs/contribute/architecture.md", "mermaid", "flowchart"): "test_imports.py compares it with the imports",
    ("docs/explanation/how-it-works.md", "text", " your machine"): "a drawing",
    ("docs/how-to/medical-images.md", "text", "$ obscura quickstart scans"): "test_quickstart.py makes and compares it",
    ("docs/tutorials/command-line.md", "text", "$ obscura quickstart"): "test_quickstart.py compares it with a run",
    ("docs/tutorials/command-line.md", "text", "6,000 images"): "test_quickstart.py compares it with a run",
    ("docs/operate/monitor.md", "text", '{"action"'): "an event; tests/service/test_recording.py compares its fields",
    ("docs/operate/monitor.md", "text", '{"created"'): "tests/service/webhooks/test_delivering.py compares a request",
    ("docs/explanation/recipes.md", "json", "{"): "the description of a network; test_examples.py reads it",
}

# A training that takes a moment, and fewer images: of a block only these words are changed before it is run.
TINY = {"teachers": "10", "top_k": "4", "images": "20", "evaluation_samples": "100"}
_TINY_JSON = ", ".join(f'"{name}": {value}' for name, value in TINY.items())
_TINY_FLAGS = " ".join(f"-o {name}={value}" for name, value in TINY.items())
SMALLER = [
    (r"--recipe datalens", f"--recipe datalens {_TINY_FLAGS}"),
    (r"--recipe moments", "--recipe moments -o evaluation_samples=100"),
    (r"(obscura train \S+) --epsilon", r"\1 -o evaluation_samples=100 --epsilon"),
    (r'("recipe": "moments", "epsilon": 1)\b', r'\1, "options": {"evaluation_samples": 100}'),
    (r'\{"options": \{', f'{{"options": {{{_TINY_JSON}, '),
    (r'("count"|--count|"samples"):? (10000|30000)', lambda found: found[0].replace(found[2], "100")),
    (r'"records_declared": 60000', '"records_declared": 300'),  # a preview draws so many stand-ins
    (r'"subjects_declared": 3500', '"subjects_declared": 50'),
    (r"(obscura (?:datasets delete|projects create) \S+)", r"\1 --yes"),  # nobody is there to be asked
]


@dataclass(frozen=True)
class Block:
    """A fenced block of a document; `line` is that of its first line."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language == ""

    def commands(self) -> list[str]:
        """Return the commands of a shell block that are run, each with its continuation lines."""
        found, pending = [], ""
        for line in self.text.splitlines():
            pending += line + "\n"
            if line.endswith("\\") or not _closed(pending):
                continue
            if pending.strip():
                found.append(pending)
            pending = ""
        assert not pending, f"{self}: a quote is open at the end"
        return [command for command in found if reason_against(command) is None]


def blocks() -> list[Block]:
    found = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            found.append(Block(name, text[: match.start(2)].count("\n") + 1, match[1].strip(), match[2]))
    return found


def reason_against(command: str) -> str | None:
    """Return the reason not to run a command; None if it is run."""
    return next((reason for start, reason in NOT_RUN.items() if command.startswith(start)), None)


def smaller(text: str) -> str:
    for pattern, replacement in SMALLER:
        text = re.sub(pattern, replacement, text)
    return text


def _closed(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True
