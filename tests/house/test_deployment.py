"""Dockerfile, compose file, Makefile and CI entry. No engine is needed: files are parsed, not built."""

import os
import re
import shutil
import subprocess
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from packaging.utils import canonicalize_name

from scripts.with_services import free_port, redis_answers
from service.settings import Settings
from tests.together import wait_until

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {"OBSCURA_POSTGRESQL_PASSWORD": "trial", "OBSCURA_REDIS_PASSWORD": "trial"}
IMAGES = ("api", "worker")
PIN_AGE_MAX = timedelta(days=183)
POSTGRESQL_NEEDS = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"]  # until it has become the user `postgres`
SERVICES = {"postgresql", "redis", "migrate", "api", "worker"}


def compose_command() -> list[str] | None:
    """Return `docker compose`, or the older `docker-compose`; None if neither is installed."""
    plugin = ["docker", "compose"]
    if shutil.which("docker") and not subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode:
        return plugin
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
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is (name != "postgresql"), name
        assert service.get("cap_add", []) == (POSTGRESQL_NEEDS if name == "postgresql" else []), name


def test_redis_takes_its_password_and_shows_it_in_no_argument(services):
    """Run the command of the compose file with an installed redis-server."""
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on this machine")
    port = free_port()
    command = [word.replace("$$", "$").replace("--appendonly", f"--port {port} --appendonly")
               for word in services["redis"]["command"]]  # fmt: skip
    with subprocess.Popen(command, env=os.environ | {"REDIS_PASSWORD": "a-password"}, stdout=subprocess.DEVNULL) as run:
        try:
            wait_until(lambda: redis_answers(f"redis://:a-password@127.0.0.1:{port}"), "Redis does not start")
            with redis.Redis(port=port) as client, pytest.raises(redis.AuthenticationError):
                client.ping()
            assert b"a-password" not in Path(f"/proc/{run.pid}/cmdline").read_bytes()
        finally:
            run.terminate()


def test_no_pin_is_older_than_six_months():
    """Old images and packages have known vulnerabilities. Take newer ones; `make lock` does for packages."""
    files = ["docker-compose.yml", "Dockerfile", "constraints.txt", *(f"deploy/requirements-{n}.txt" for n in IMAGES)]
    found: dict[str, date] = {}
    for name in files:
        text = (ROOT / name).read_text(encoding="utf-8")
        pins = re.findall(r"^\s*image: (\S+:\S+)|^ARG (PYTHON_TAG=\S+)", text, flags=re.MULTILINE)
        days = re.findall(r"# (?:released|resolved) (\d{4}-\d\d-\d\d)$", text, flags=re.MULTILINE)
        assert len(days) == (len(pins) or 1), f"{name}: write `# released YYYY-MM-DD` beside each pinned image"
        found |= {f"{name} {number}": date.fromisoformat(day) for number, day in enumerate(days)}
    today = datetime.now(UTC).date()
    assert {name: day for name, day in found.items() if today - day > PIN_AGE_MAX} == {}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_installs_pinned_versions_with_hashes(name):
    """The versions are the tested ones, and complete."""
    from tests.house.test_constraints import declared, pins

    own = pins(f"deploy/requirements-{name}.txt")
    assert own.items() <= pins().items()
    parts = {"api": ("client", "server", "s3", "oidc"), "worker": ("client", "server", "s3", "worker")}[name]
    assert {canonicalize_name(requirement.name) for requirement in declared(*parts)} <= set(own)
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f"--require-hashes --requirement requirements-{name}.txt" in text


def test_the_api_believes_the_host_that_its_users_come_through(services):
    """A proxy on the host reaches the container from the gateway of the published network."""
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
    assert set(services["api"]["environment"]) <= {f"OBSCURA_{name.upper()}" for name in Settings.model_fields}


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


def test_ci_runs_checks_and_tests_and_stops_at_the_first_failure():
    path = ROOT / ".ci" / "run"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in lines
    assert "make check" in lines
    assert "make test" in lines
    subprocess.run(["bash", "-n", str(path)], check=True)
