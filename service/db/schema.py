"""Build the schema, by the migrations alone."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory

from alembic import command

PROJECT_ROOT = Path(__file__).resolve().parents[2]  # of a checkout, which has the migrations beside the packages
_INSTALLED = "share/obscura/alembic/env.py"  # in the environment of an installed wheel


def migration_config(url: str) -> Config:
    """Return alembic's configuration for one database; raise FileNotFoundError if there are no migrations."""
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["url"] = url
    return config


def _scripts() -> Path:
    beside = PROJECT_ROOT / "alembic"
    own = files("obscura-images-server") or ()
    installed = (Path(str(file.locate())) for file in own if file.as_posix().endswith(_INSTALLED))
    for script in (beside / "env.py", *installed):
        if script.is_file():
            return script.resolve().parent
    raise FileNotFoundError(f"no migrations in {beside}, nor installed with the package: install the project again")


def newest_revision() -> str | None:
    """Return the revision of the schema that this code works with."""
    return ScriptDirectory.from_config(migration_config("")).get_current_head()


def upgrade_schema(url: str) -> None:
    """Migrate a database, empty or not, to the newest schema. Several processes may call it at once."""
    command.upgrade(migration_config(url), "head")
