"""Dockerfile, compose file, Makefile and CI entry. No engine is needed: files are parsed, not built."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {"OBSCURA_POSTGRESQL_PASSWORD": "trial", "OBSCURA_REDIS_PASSWORD": "trial"}
SERVICES = {"postgresql", "redis", "migrate", "api", "worker"}


def compose_command() -> list[str] | None:
    """`docker compose`, or the older `docker-compose`; None when this machine has neither."""
    if (
        shutil.which("docker")
        and not subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
    ):
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def compose_config(env_file: Path, **secrets: str) -> subprocess.CompletedProcess[str]:
    command = compose_command()
    if command is None:
        pytest.skip("no docker compose on this machine; the file is checked as YAML only")
    env_file.touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OBSCURA_", "COMPOSE_"))}
    return subprocess.run(
        [*command, "--file", "docker-compose.yml", "--env-file", str(env_file), "config"],
        cwd=ROOT,
        env=environment | secrets,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def services() -> dict[str, dict[str, Any]]:
    """The services as written, merge keys resolved."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = loaded["services"]
    return found


def test_docker_compose_accepts_the_file(tmp_path):
    result = compose_config(tmp_path / "empty.env", **SECRETS)
    assert result.returncode == 0, result.stderr
    assert set(yaml.safe_load(result.stdout)["services"]) == SERVICES


def test_docker_compose_refuses_to_start_without_secrets(tmp_path):
    result = compose_config(tmp_path / "empty.env")
    assert result.returncode != 0
    assert "set it in .env" in result.stderr


def test_every_service_is_limited_and_hardened(services):
    assert set(services) == SERVICES
    for name, service in services.items():
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}, name
        assert "privileged" not in service, name
    for name in ("migrate", "api", "worker"):
        assert services[name]["read_only"] is True, name
        assert services[name]["cap_drop"] == ["ALL"], name


def test_the_api_believes_the_host_that_its_users_come_through(services):
    """A proxy on the host reaches the container from the gateway of the network on which the port is published."""
    network = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["networks"]["outside"]
    said, example = services["api"]["environment"], (ROOT / ".env.example").read_text("utf-8")
    assert said["OBSCURA_PUBLIC_URL"] == "${OBSCURA_PUBLIC_URL:-}"
    believed = said["OBSCURA_TRUSTED_PROXIES"].removeprefix("${OBSCURA_TRUSTED_PROXIES:-").removesuffix("}")
    settings = Settings(trusted_proxies=believed, public_url="")
    assert settings.trusted_proxy_networks[0] == f"{network['ipam']['config'][0]['gateway']}/32"
    assert "OBSCURA_PUBLIC_URL=\n" in example
    assert f"OBSCURA_TRUSTED_PROXIES={believed}\n" in example


def test_services_start_in_order(services):
    assert services["migrate"]["depends_on"]["postgresql"]["condition"] == "service_healthy"
    for name in ("api", "worker"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert services[name]["depends_on"]["redis"]["condition"] == "service_healthy"
    for name in ("postgresql", "redis"):
        assert "test" in services[name]["healthcheck"]
        assert re.search(r":\d+\.\d+", services[name]["image"]), "a tag that does not move"


def test_only_the_api_is_reachable_and_only_from_this_host(services):
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert set(published) == {"api"}
    assert all(port.startswith("127.0.0.1:") for port in published["api"])


def test_api_and_worker_share_database_redis_and_data(services):
    assert services["api"]["environment"] == services["worker"]["environment"] == services["migrate"]["environment"]
    assert services["api"]["volumes"] == services["worker"]["volumes"]
    known = settings_variables()
    assert set(services["api"]["environment"]) <= known


def settings_variables() -> set[str]:
    from service.settings import Settings

    return {f"OBSCURA_{name.upper()}" for name in Settings.model_fields}


def test_no_secret_is_written_down():
    for name in ("docker-compose.yml", "Dockerfile", ".env.example"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for line in text.splitlines():
            if "PASSWORD" in line and not line.lstrip().startswith("#"):
                assert re.search(r"\$\{OBSCURA_\w+:\?|\$\$REDIS_PASSWORD|^OBSCURA_\w+=$", line), line
    assert "/.env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_dockerfile_has_both_targets_unprivileged_and_pinned():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stages = dict(re.findall(r"^FROM \S+ AS ([\w-]+)\n(.*?)(?=^FROM |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert {"api", "worker"} <= set(stages)
    for name in ("api", "worker"):
        assert "\nUSER obscura\n" in stages[name]
        assert "HEALTHCHECK" in stages[name]
    assert "build-worker" not in stages["api"], "the api image takes nothing from the stage that holds torch"
    assert re.search(r"^ARG PYTHON_TAG=\d+\.\d+\.\d+-slim", text, flags=re.MULTILINE)
    assert ":latest" not in text


def test_build_context_has_what_the_dockerfile_needs_and_no_data():
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"
    }
    assert {"obscura", "service", "workers", "models", "privacy", "alembic", "alembic.ini", "pyproject.toml"} <= allowed
    assert not allowed & {"var", ".env", ".git", ".venv"}
    assert all((ROOT / name).exists() for name in allowed)


def test_make_explains_its_targets():
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    result = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("help", "setup", "demo", "test", "check", "bench", "serve", "worker"):
        assert re.search(rf"^  make {target}\s+\S", result.stdout, flags=re.MULTILINE), target


def test_ci_runs_checks_and_tests_and_stops_at_the_first_failure():
    path = ROOT / ".ci" / "run"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in lines
    assert "make check" in lines
    assert "make test" in lines
    subprocess.run(["bash", "-n", str(path)], check=True)
