"""Build the schema, only by the migrations."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory

from alembic import command

PROJECT_ROOT = Path(__file__).resolve().parents[2]  # of a checkout, where the migrations are next to the packages
_INSTALLED = "share/obscura/alembic/env.py"  # in an environment with an installed wheel


def migration_config(url: str) -> Config:
    """Return Alembic's configuration for a database; raise FileNotFoundError if the migrations are missing."""
    own = files("obscura-images-server") or ()
    installed = (Path(str(file.locate())) for file in own if file.as_posix().endswith(_INSTALLED))
    script = next(filter(Path.is_file, (PROJECT_ROOT / "alembic/env.py", *installed)), None)
    if script is None:
        raise FileNotFoundError(f"No migrations in {PROJECT_ROOT}/alembic or in the installed package: reinstall it.")
    config = Config()
    config.set_main_option("script_location", str(script.resolve().parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["url"] = url
    return config


def newest_revision() -> str | None:
    """Return the schema revision that this code needs."""
    return ScriptDirectory.from_config(migration_config("")).get_current_head()


def upgrade_schema(url: str) -> None:
    """Migrate a database, empty or not, to the newest schema. Several processes may call it at once."""
    command.upgrade(migration_config(url), "head")
