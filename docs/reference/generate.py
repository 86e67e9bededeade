"""Generate the reference pages from the code, when `make docs` builds the site (a hook of MkDocs)."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from obscura.cli.app import app
from obscura.wire.wording import values_in_words
from privacy.plans.plan import Recipe
from privacy.plans.private_steps import StepsConfig
from privacy.plans.registry import RECIPES
from service.api.problems import STATUSES, TITLES, meanings
from service.audit.findings import FindingCode
from service.dashboard.pages import HASHES_FILE
from service.main import create_app
from service.settings import Settings

# What an operator should think of first, by finding.
CAUSES = {
    "a row was edited, or a disk is failing": ("entry_missing", "hash_mismatch", "chain_broken", "entry_malformed"),
    "the database cannot read an account's log beyond the named entry: a disk or an index is failing": (
        "log_unreadable",
    ),
    "entries were edited and their hashes recomputed; or, after an upgrade, the software has a fault": (
        *("transition_refused", "amount_mismatch", "balance_mismatch", "overspent", "price_mismatch"),
        *("price_unknown", "capacity_mismatch", "raise_unapproved"),
    ),
    "a row beside the log was edited": (
        *("account_mismatch", "hold_mismatch", "hold_repeated", "orphan_entries", "orphan_hold", "job_mismatch"),
    ),
    "a release or its files were edited, or put there by hand": (
        *("release_unpaid", "release_mismatch", "receipt_mismatch", "artifact_mismatch", "card_mismatch"),
    ),
    "a signed document was altered, or its key is not trusted here": (
        *("checkpoint_broken", "checkpoint_file_refused", "receipt_refused"),
    ),
    "an old backup was restored, and the installation is locked; or the log was rewritten": (
        *("older_than_checkpoint", "older_than_receipt", "checkpoint_missing"),
    ),
    "the schema was changed by hand, a backup tool left triggers out, or a disk is failing": (
        *("trigger_missing", "database_damaged"),
    ),
    "the service was started with another database or data folder than its own": ("installation_mismatch",),
    "an old backup was restored, and the installation is locked": (
        *("journal_unknown", "journal_ahead", "release_unknown", "dataset_unknown"),
    ),
    "everything was restored from a backup, and nothing proves what was spent after it": ("restored",),
    "a public key cannot be read, or the database did not answer: verify again": ("not_verifiable",),
}
# What a caller should do about an error, by code.
REMEDIES = {
    "account_closed": "Open another account for the new people, or ask this account's owner to open it to new data.",
    "account_frozen": "Ask an admin for the reason, and to unfreeze the account.",
    "address_refused": "Use an https address with a public host.",
    "arming_stopped": "Ask the operator to run `obscura ledger verify`. Jobs wait and lose nothing.",
    "audit_log_unavailable": "Nothing was done. Retry once the operator has corrected the audit log.",
    "busy": "Wait for `Retry-After`, or use fewer concurrent requests.",
    "clock_refused": "Ask the operator to set the clock; then retry.",
    "conflict": "Read the message and the object's state, then retry or change the request.",
    "database_unsuitable": "Ask the operator to correct the setting that the message names.",
    "forbidden": "Use a key with the scope that the message names, or ask an admin for one.",
    "hold_exhausted": "None, because only workers get this error. The training ends with the results paid for so far.",
    "idempotency_mismatch": "Use a new key for a new request.",
    "installation_locked": "Ask the operator to record the missing spending (`obscura ledger accept ACCOUNT`).",
    "insufficient_budget": "Lower epsilon, reuse a release (free), or request a higher limit.",
    "internal": "Send the operator the `X-Request-Id` of the response.",
    "invalid_input": "Correct the value that the message names.",
    "invalid_parameter": "Correct the option that the message names; `GET /v1/recipes` has its bounds.",
    "invalid_request": "Correct the fields listed in `errors`.",
    "job_failed": "Read the job's `failure`, correct the cause, and request it again.",
    "large_delta": "Lower delta, or confirm it with `accept_large_delta`.",
    "ledger_corruption": "Ask the operator to run `obscura ledger verify`. Nothing was spent.",
    "not_found": "Check the id, and that the key belongs to the object's project.",
    "pending": "Wait for the job to end.",
    "provider_unavailable": "Retry later. Keys of the installation's admins still work.",
    "quota_exceeded": "For jobs, wait until one ends; for known uploads, until midnight UTC. Or ask an admin for more.",
    "range_not_satisfiable": "Request the file again from its beginning.",
    "sample_removed": "Request the same sample again: it costs nothing and has the same bytes.",
    "upload_lost": "Upload again. With several servers, send all parts of an upload to the same server.",
    "stale_attempt": "None, because only workers get this error. Another attempt of the job has taken over.",
    "storage_unavailable": "Wait for `Retry-After`, then retry.",
    "too_large": "Send less, or ask the operator to raise the limit.",
    "too_many_requests": "Wait for `Retry-After`. Follow jobs by their events instead of polling them.",
    "too_many_streams": "Wait for `Retry-After`.",
    "too_many_streams_for_key": "Close an event stream of this key.",
    "too_many_streams_for_project": "Close an event stream of this project.",
    "too_many_uploads_for_key": "Wait until another upload of this key ends.",
    "too_many_uploads_for_project": "Wait until another upload of this project ends.",
    "too_many_wrong_keys": "Send a valid key, or wait for `Retry-After`.",
    "unauthorized": "Send a valid key: `Authorization: Bearer TOKEN`.",
    "unsupported_media_type": "Send JSON with `Content-Type: application/json`, or the file itself.",
    "upload_failed": "Upload again. The dataset is still declared.",
    "upload_refused": "Correct the content: `fault` names the broken rule.",
    "upload_stalled": "Upload again at 8 KiB a second or more.",
    "uploads_stopped": "Ask the operator to free disk space, or to restore the fingerprint key if it is missing.",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, write in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=write()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Keep notebooks out of the search; replace diagrams by tables, because a script from another host draws them."""
    if page.file.src_uri.startswith("research/"):
        page.meta.setdefault("search", {"exclude": True})
    return re.sub(r"```mermaid\n(.*?)```", lambda found: _imports(found[1]), markdown, flags=re.DOTALL)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the hashes of inline scripts, which the service's content security policy allows."""
    site, hashes = Path(config.site_dir), set()
    for page in site.rglob("*.html"):
        for script in re.findall(r"<script>(.*?)</script>", page.read_text("utf-8"), flags=re.DOTALL):
            digest = hashlib.sha256(script.encode()).digest()
            hashes.add(f"sha256-{base64.b64encode(digest).decode('ascii')}")
    (site / HASHES_FILE).write_text("\n".join(sorted(hashes)), "ascii")


def _imports(diagram: str) -> str:
    names = dict(re.findall(r'(\w+)\["([^"]+)"\]', diagram))
    arrows: dict[str, list[str]] = {}
    for start, end in re.findall(r"^ *(\w+) *--> *(\w+)$", diagram, flags=re.MULTILINE):
        arrows.setdefault(names[start], []).append(f"`{names[end]}`")
    return _table(["module", "imports"], [[f"`{start}`", ", ".join(ends)] for start, ends in arrows.items()])


def cli() -> str:
    """Return every command with its options."""
    lines = ["# Command line reference", "", "Run `obscura COMMAND --help` for the same text."]
    for path, command in _commands(typer.main.get_command(app), "obscura"):
        lines += ["", f"## `{path}`", "", (command.help or "").split("\b")[0].strip()]
        given = [each for each in command.params if each.name != "help"]
        rows = [[_usage(each), _cell(getattr(each, "help", "") or "")] for each in given]
        lines += ["", _table(["argument or option", "meaning"], rows)] if rows else []
    return "\n".join(lines)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not getattr(command, "commands", None):
        yield path, command
    for name, child in sorted(getattr(command, "commands", {}).items()):
        if not child.hidden:
            yield from _commands(child, f"{path} {name}")


def _usage(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name.upper()).replace('|', ' or ')}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def http() -> str:
    """Return every operation by resource, with its scope."""
    document = create_app(Settings()).openapi()
    lines = ["# HTTP reference\n\n`/reference` of a running service shows every field and lets you try each operation."]
    by_tag: dict[str, list[list[str]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            text = operation.get("description") or operation.get("summary", "")
            row = [f"`{method.upper()} {path}`", f"`{operation['operationId']}`", _cell(text.split("\n\n")[0])]
            by_tag.setdefault(operation["tags"][0], []).append(row)
    for tag, rows in by_tag.items():
        lines += ["", f"## {tag.capitalize()}", "", _table(["request", "operation", "what it does"], rows)]
    return "\n".join(lines)


def recipes() -> str:
    """Return every recipe with its options. The shared options of private steps are listed once."""
    stepping = [each for each in RECIPES.values() if issubclass(each.config, StepsConfig)]
    rows = []
    for recipe in RECIPES.values():
        units = ", ".join(f"{unit}s" for unit in sorted(recipe.units))
        rows.append([f"`{recipe.name}`", recipe.releases, _codes(recipe.presets) or "none", units])
    lines = [
        "# Recipe reference\n\n`obscura recipes NAME` and `GET /v1/recipes` report the same. `*`: the default follows "
        "from the declaration and the budget ([how the recipes work](../explanation/recipes.md)).\n",
        _table(["recipe", "releases", "presets", "units"], rows),
    ]
    for recipe in RECIPES.values():
        shared = StepsConfig.model_fields if recipe in stepping else {}
        own = [name for name in recipe.config.model_fields if name not in shared]
        lines += ["", f"## `{recipe.name}`", "", _options(own, [recipe])]
        lines += ["", "Also the options of [private steps](#private-steps)."] if shared else []
    lines += ["", "## Private steps", "", _options(StepsConfig.model_fields, stepping)]
    return "\n".join(lines)


def _options(names: Iterable[str], recipes: Sequence[Recipe]) -> str:
    rows = []
    for name in names:
        schemas = [recipe.options["properties"][name] for recipe in recipes]
        defaults = [_default(recipe, name) for recipe in recipes]
        rows.append([f"`{name}`", _values(schemas[0]), *defaults, _cell(schemas[0]["description"])])
    heads = ["default"] if len(recipes) == 1 else [f"`{recipe.name}`" for recipe in recipes]
    return _table(["option", "values", *heads, "meaning"], rows)


def _default(recipe: Recipe, name: str) -> str:
    value = recipe.defaults[name]
    return "*" if name in recipe.follows else f"`{value if isinstance(value, str) and value else json.dumps(value)}`"


def _values(schema: dict[str, Any]) -> str:
    return _codes(schema["enum"]) if "enum" in schema else values_in_words(schema)


def settings() -> str:
    """Return every setting with its default."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        has_default = default not in ("", None, {}) and "secret" not in name
        shown = json.dumps(default, default=str).strip('"')
        row = [f"`OBSCURA_{name.upper()}`", f"`{shown}`" if has_default else "none", _cell(field.description or "")]
        rows.append(row)
    return "# Settings reference\n\nSettings are environment variables of API processes and workers.\n\n" + _table(
        ["variable", "default", "meaning"], rows
    )


def errors() -> str:
    """Return every error code with its status and meaning."""
    about = "Every error is a problem document with a `code`; see [API conventions](api-conventions.md#errors)."
    lines = [f"# Error reference\n\n{about}"]
    for code, meaning in meanings().items():
        lines += ["", f"## `{code}` {{#{code}}}", "", f"**{STATUSES[code]} {TITLES[code]}.** {meaning}"]
        lines += ["", f"*Remedy.* {REMEDIES[code]}"]
    return "\n".join(lines)


def findings() -> str:
    """Return every finding of a verification with its usual cause."""
    causes = {code: cause for cause, codes in CAUSES.items() for code in codes}
    rows = [[f"`{code}`", causes[code]] for code in FindingCode]
    return (
        "# Ledger findings\n\nCodes that `obscura ledger verify` reports, with the usual cause of each. "
        "[Troubleshoot](../operate/troubleshooting.md#when-trainings-are-stopped) says what to do.\n\n"
        + _table(["finding", "usual cause"], rows)
    )


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines)


PAGES = {
    "cli": cli,
    "http-api": http,
    "recipes": recipes,
    "settings": settings,
    "errors": errors,
    "ledger-findings": findings,
}
