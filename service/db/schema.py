"""The schema is built by the migrations alone, in the embedded default too."""

from __future__ import annotations

from pathlib import Path

from alembic.config import Config

from alembic import command

# The project's root: holds alembic.ini and alembic/ in a checkout, in an editable install and in the image.
PROJECT_ROOT = Path(__file__).resolve().parents[2]


def migration_config(url: str) -> Config:
    """Return alembic's configuration for one database.

    Raises:
        FileNotFoundError: the migrations are not beside the package (not installed from a checkout).
    """
    scripts = PROJECT_ROOT / "alembic"
    if not (scripts / "env.py").is_file():
        raise FileNotFoundError(f"no migrations in {scripts}: install the project from its checkout")
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["url"] = url
    return config


def upgrade_schema(url: str) -> None:
    """Bring a database to the newest schema; creates it from empty. Safe to call from several processes at once.

    Args:
        url: of the database, as in the settings.
    """
    command.upgrade(migration_config(url), "head")
