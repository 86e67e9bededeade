"""The schema is built by the migrations alone, in the embedded default too."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory

from alembic import command

PROJECT_ROOT = Path(__file__).resolve().parents[2]  # of a checkout: the migrations lie beside the packages there
_INSTALLED = "share/obscura/alembic/env.py"  # in the environment that a wheel was installed in


def migration_config(url: str) -> Config:
    """Return alembic's configuration for one database.

    Raises:
        FileNotFoundError: the migrations are neither beside the package nor where a wheel puts them.
    """
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["url"] = url
    return config


def _scripts() -> Path:
    """The folder of the migrations."""
    beside = PROJECT_ROOT / "alembic"
    own = files("obscura-images-server") or ()
    installed = (Path(str(file.locate())) for file in own if file.as_posix().endswith(_INSTALLED))
    for script in (beside / "env.py", *installed):
        if script.is_file():
            return script.resolve().parent
    raise FileNotFoundError(f"no migrations in {beside}, nor installed with the package: install the project again")


def newest_revision() -> str | None:
    """The schema that this version of the code works with."""
    return ScriptDirectory.from_config(migration_config("")).get_current_head()


def upgrade_schema(url: str) -> None:
    """Bring a database to the newest schema; creates it from empty. Safe to call from several processes at once.

    Args:
        url: of the database, as in the settings.
    """
    command.upgrade(migration_config(url), "head")
