"""Rows that belong to a project are read for callers through `service.identity.access` alone."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWNED = {
    *("Account", "Admin", "ApiKey", "AuditEvent", "Dataset", "Decision", "Entry", "Evaluation"),
    *("Hold", "Job", "Preview", "Project", "Release", "Sample", "Share", "Sweep", "Webhook"),
}
LEAVE_OUT = {"visible", "newest", "answer_newest"}  # what takes a query and leaves out what the caller may not see
READERS = {"select", "get", "get_one"}

# Who reads whole tables, and why nothing of it reaches a caller who may not see it.
WHOLE = {
    "identity/access.py": "says by its account, release or job whose a row is",
    "identity/admins.py": "who may decide, and that two admins stay, does not depend on who asks",
    "audit": "verifies every row",
    "identity/auth.py": "finds the caller, and revokes with a key all that it made",
    "backups": "copies and restores every row",
    "dashboard/sessions.py": "finds the caller, whose own name it shows",
    "datasets/deletion.py": "images stay while any job needs them; ends deletions without being asked, and erases",
    "datasets/fingerprints.py": "an image must be known whoever's it is",
    "datasets/receiving.py": "journals accepted uploads at the start, whoever's they are",
    "datasets/states.py": "ends everybody's uploads whose lease has run out",
    "datasets/withdrawal.py": "goes on with what was begun, and tells a restored database, without being asked",
    "identity/decisions.py": "finds who asks and decides and whom they count as, and whether the same was asked for",
    "installation.py": "compares database and data folder",
    "ledger/accounts.py": "a name must be free in every project; pages read an account that was found",
    "ledger/holds.py": "a job has one hold, whoever asks",
    "ledger/rows.py": "checks that the account is visible, then locks and verifies; audits read every hold",
    "ledger/limits.py": "writes down who asked for a raise and who approved it",
    "metrics.py": "counts everybody's jobs, for whoever is on call",
    "notices.py": "tells each webhook what its own project's members see",
    "quotas.py": "counts the jobs of a project once it was found, and puts everybody's jobs in their order",
    "identity/people.py": "finds who signs in and is asked about, whom no project owns, and their own roles",
    "identity/projects.py": "names projects whose ids stand in rows that the caller sees, and counts all",
    "identity/recording.py": "deletes old events, whoever's they are",
    "jobs/lifecycle.py": "workers take any job",
    "jobs/lookup.py": "what is known with a release that was found: its classes, recipe and options",
    "jobs/sharing.py": "finds a project to share with, and ends what others draw when it ends",
    "webhooks/delivering.py": "sends a webhook's notices to its URL, and counts the caller's webhooks",
    "jobs/sweeps.py": "ends the jobs of a sweep that was found already",
}


def readings(tree: ast.AST, stored: set[str]) -> Iterator[int]:
    """Lines that read an owned table, by a query or by an id, and are not handed to what leaves out what is hidden.

    Args:
        tree: below which is searched.
        stored: names of queries that stand at the top of a module, built once.
    """
    for node in ast.iter_child_nodes(tree):
        name = getattr(node, "id", getattr(node, "attr", ""))
        if name in stored:
            yield node.lineno  # type: ignore[attr-defined]  # a name, or an attribute
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            read = {part.id for given in node.args for part in ast.walk(given) if isinstance(part, ast.Name)}
            if name in READERS and read & OWNED:
                yield node.lineno
        if not isinstance(node, ast.Call) or name not in LEAVE_OUT:
            yield from readings(node, stored)


def past(sources: dict[str, str]) -> list[str]:
    """Places in files that read what belongs to somebody past the one place."""
    trees = {file: parse(source) for file, source in sources.items()}
    tops = [node for tree in trees.values() for node in tree.body if isinstance(node, ast.Assign)]
    stored: set[str] = set()
    for _ in range(2):  # a query may be made of another one
        made = [node.targets for node in tops if any(readings(node, stored))]
        stored |= {target.id for targets in made for target in targets if isinstance(target, ast.Name)}
    return [
        f"{file}:{line}"
        for file, tree in trees.items()
        for node in tree.body
        if not isinstance(node, ast.Assign)
        for line in readings(node, stored)
    ]


parse = cache(ast.parse)


def of(place: str, found: list[str]) -> list[str]:
    """Those of some places that are in a file, or below a folder."""
    return [one for one in found if one.startswith((f"{place}:", f"{place}/"))]


def sources() -> dict[str, str]:
    service = ROOT / "service"
    return {str(path.relative_to(service)): path.read_text("utf-8") for path in sorted(service.rglob("*.py"))}


def test_what_belongs_to_somebody_is_read_in_one_place_but_for_exceptions_that_are_needed() -> None:
    found = past(sources())
    assert {place: of(place, found) for place in WHOLE if not of(place, found)} == {}
    assert set(found) - {one for place in WHOLE for one in of(place, found)} == set()


def test_readings_past_it_are_found() -> None:
    planted = {
        "views/datasets.py": "session.scalars(select(Dataset)).all()",
        "views/jobs.py": "session.execute(ON_PAGES).all()",
        "api/routes/jobs.py": "session.execute(views.JOBS).all()",
        "reports.py": "session.get(Release, 'rel_x')",
        "dashboard/jobs.py": "session.scalar(select(func.count(Job.id)))",
    }
    whole = sources()
    before = past(whole)
    for file, reading in planted.items():
        whole[file] += f"\n\ndef planted(session):\n    return {reading}\n"
    assert {place.partition(":")[0] for place in past(whole) if place not in before} == set(planted)
