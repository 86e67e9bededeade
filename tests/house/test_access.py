"""Rows that belong to a project are read for callers through `service.identity.access` alone."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWNED = {
    *("Account", "Admin", "ApiKey", "AuditEvent", "Dataset", "Decision", "Entry", "Evaluation"),
    *("Hold", "Invitation", "Job", "Preview", "Project", "Release", "Sample", "Share", "Sweep", "Webhook"),
}
FILTERS = {"visible", "newest", "newest_page"}  # functions that filter a query for the caller
READERS = {"select", "get", "get_one"}

# Modules that may query these tables without `visible`, and why no caller sees a hidden row by them.
WHOLE = {
    "audit": "verifies every row",
    "backups": "copies and restores every row",
    "datasets/deletion.py": "runs in the background, and keeps images that any job still needs",
    "datasets/fingerprints.py": "compares images with those of every project",
    "datasets/receiving.py": "journals accepted uploads of every project at the start",
    "datasets/states.py": "ends expired uploads of every project",
    "datasets/withdrawal.py": "continues unfinished withdrawals of every project in the background",
    "identity/access.py": "is the rule itself",
    "identity/admins.py": "counts all admins, so that two remain",
    "identity/auth.py": "finds the key of the caller, and revokes the keys that it created",
    "identity/decisions.py": "finds the admins who ask and decide, and duplicates of a request",
    "identity/invitations.py": "finds the invitation of a link, and counts the unused invitations of its project",
    "identity/people.py": "finds the person who signs in, and their keys",
    "identity/projects.py": "names the projects, accounts and admins of visible rows, and counts all projects",
    "identity/recording.py": "deletes old events of every project",
    "installation.py": "compares the database with the data folder",
    "jobs/lifecycle.py": "lets workers claim jobs of every project",
    "jobs/releases.py": "reads the job, dataset and project of a release that was found, and ends jobs of a share",
    "jobs/sweeps.py": "ends the jobs of a sweep that was found",
    "ledger/accounts.py": "requires unique names in all projects, and reads the log of an account that was found",
    "ledger/holds.py": "allows one hold for each job",
    "ledger/limits.py": "reads the admins who asked for a raise and approved it",
    "ledger/rows.py": "requires a visible account, then locks and verifies it",
    "metrics.py": "counts all jobs, for operators",
    "notices.py": "finds the webhooks of the project that an event concerns",
    "quotas.py": "counts the jobs of a project that was found, and orders the jobs of all projects",
    "webhooks/delivering.py": "sends each delivery to its own webhook, and counts the webhooks of the caller",
}


def readings(tree: ast.AST, stored: set[str]) -> Iterator[int]:
    """Yield lines that read an owned table without a filter; `stored` names module-level queries of such tables."""
    for node in ast.iter_child_nodes(tree):
        name = getattr(node, "id", getattr(node, "attr", ""))
        if name in stored:
            yield node.lineno  # type: ignore[attr-defined]  # a name, or an attribute
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            read = {part.id for given in node.args for part in ast.walk(given) if isinstance(part, ast.Name)}
            if name in READERS and read & OWNED:
                yield node.lineno
        if not isinstance(node, ast.Call) or name not in FILTERS:
            yield from readings(node, stored)


def unfiltered(sources: dict[str, str]) -> list[str]:
    """Return the lines, as `file:line`, that read owned tables without a filter."""
    trees = {file: parse(source) for file, source in sources.items()}
    tops = [node for tree in trees.values() for node in tree.body if isinstance(node, ast.Assign)]
    stored: set[str] = set()
    for _ in range(2):  # a query may be built from another one
        targets = [node.targets for node in tops if any(readings(node, stored))]
        stored |= {target.id for each in targets for target in each if isinstance(target, ast.Name)}
    return [
        f"{file}:{line}"
        for file, tree in trees.items()
        for node in tree.body
        if not isinstance(node, ast.Assign)
        for line in readings(node, stored)
    ]


parse = cache(ast.parse)


def sources() -> dict[str, str]:
    service = ROOT / "service"
    return {str(path.relative_to(service)): path.read_text("utf-8") for path in sorted(service.rglob("*.py"))}


def test_only_the_listed_modules_read_owned_tables_without_a_filter() -> None:
    found = unfiltered(sources())
    by_place = {place: {one for one in found if one.startswith((f"{place}:", f"{place}/"))} for place in WHOLE}
    assert [place for place, lines in by_place.items() if not lines] == [], "not needed any more"
    assert set(found) - set().union(*by_place.values()) == set()


def test_planted_queries_are_found() -> None:
    planted = {
        "views/releases.py": "session.scalars(select(Dataset)).all()",
        "views/jobs.py": "session.execute(ON_PAGES).all()",
        "api/routes/jobs.py": "session.execute(views.JOBS).all()",
        "reports.py": "session.get(Release, 'rel_x')",
        "dashboard/jobs.py": "session.scalar(select(func.count(Job.id)))",
    }
    files = sources()
    before = unfiltered(files)
    for file, query in planted.items():
        files[file] += f"\n\ndef planted(session):\n    return {query}\n"
    assert {line.partition(":")[0] for line in unfiltered(files) if line not in before} == set(planted)
