"""Dockerfile, compose file, Makefile, CI entry and Kubernetes manifests: parsed, not built; no engine is needed."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import redis
import yaml
from packaging.utils import canonicalize_name

from scripts.with_services import free_port, redis_answers
from service.settings import Settings
from tests.together import wait_until

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {"OBSCURA_POSTGRESQL_PASSWORD": "trial", "OBSCURA_REDIS_PASSWORD": "trial"}
IMAGES = {  # and what each installs
    "api": ("client", "server", "s3", "oidc"),
    "worker": ("client", "server", "s3", "worker"),
    "docs": ("client", "server", "s3", "docs"),
}
PIN_AGE_MAX = timedelta(days=183)
POSTGRESQL_NEEDS = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"]  # until it has become the user `postgres`
SERVICES = {"postgresql", "redis", "migrate", "api", "worker"}
FIXED = {  # by the file, whatever .env says
    f"OBSCURA_{name}" for name in ("MODE", "DATABASE_URL", "REDIS_URL", "DATA_DIR", "HOST", "PORT")
}


def compose_command() -> list[str] | None:
    """Return `docker compose`, or the older `docker-compose`; None if neither is installed."""
    plugin = ["docker", "compose"]
    if shutil.which("docker") and not subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode:
        return plugin
    return ["docker-compose"] if shutil.which("docker-compose") else None


def compose_config(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Resolve the file with these variables in `.env` of a folder."""
    command = compose_command()
    if command is None:
        pytest.skip("no docker compose on this machine; the file is checked as YAML only")
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()), "utf-8")
    return subprocess.run(
        [*command, "--file", str(ROOT / "docker-compose.yml"), "--project-directory", str(folder), "config"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith(("OBSCURA_", "COMPOSE_"))},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def services() -> dict[str, dict[str, Any]]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = loaded["services"]
    return found


def test_docker_compose_accepts_the_file_and_refuses_to_start_without_secrets(tmp_path):
    result = compose_config(tmp_path, **SECRETS)
    assert result.returncode == 0, result.stderr
    assert set(yaml.safe_load(result.stdout)["services"]) == SERVICES
    result = compose_config(tmp_path)
    assert result.returncode != 0
    assert "set it in .env" in result.stderr


def test_every_setting_in_the_env_file_reaches_the_processes(tmp_path):
    values = {f"OBSCURA_{name.upper()}": f"from-env-{name}" for name in Settings.model_fields}
    values["OBSCURA_OIDC_GROUPS"] = '{"lab heads": {"prj_abc": "owner"}}'
    result = compose_config(tmp_path, **SECRETS, **values, AWS_ENDPOINT_URL="https://s3.example.org")
    assert result.returncode == 0, result.stderr
    for name in ("api", "worker", "migrate"):
        environment = yaml.safe_load(result.stdout)["services"][name]["environment"]
        assert values.keys() <= environment.keys()
        assert {variable for variable, value in values.items() if environment[variable] != value} == FIXED
        assert environment["AWS_ENDPOINT_URL"] == "https://s3.example.org"


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
    from tests.house.test_wheel import declared, pins

    own = pins(f"deploy/requirements-{name}.txt")
    assert own.items() <= pins().items()
    assert {canonicalize_name(requirement.name) for requirement in declared(*IMAGES[name])} <= set(own)
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f"--require-hashes --requirement requirements-{name}.txt" in text


def test_the_api_believes_the_host_that_its_users_come_through(services):
    """A proxy on the host reaches the container from the gateway of the published network."""
    network = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["networks"]["outside"]
    said, example = services["api"]["environment"], (ROOT / ".env.example").read_text("utf-8")
    assert services["api"]["env_file"] == ".env"
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
    for name in ("environment", "env_file"):
        assert services["api"][name] == services["worker"][name] == services["migrate"][name]
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
    assert "COPY --from=build-docs /app/service/site /app/service/site\n" in stages["api"]
    server = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]["postgresql"]["image"]
    client = re.search(r"postgresql-client-(\d+)", stages["api"])
    assert client is not None, "`obscura backup` runs pg_dump"
    assert server.startswith(f"postgres:{client[1]}."), "pg_dump must not be older than the server"
    assert "build-worker" not in stages["api"], "the api image takes nothing from the stage that holds torch"
    assert re.search(r"^ARG PYTHON_TAG=\d+\.\d+\.\d+-slim", text, flags=re.MULTILINE)
    assert ":latest" not in text


def test_build_context_has_what_the_dockerfile_needs_and_no_data():
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"
    }
    assert {"obscura", "service", "workers", "models", "privacy", "alembic", "alembic.ini", "pyproject.toml"} <= allowed
    assert {"docs", "mkdocs.yml", "benchmarks", *(f"deploy/requirements-{name}.txt" for name in IMAGES)} <= allowed
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


# --- Kubernetes -------------------------------------------------------------------------------------------------------


FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = "1.37"
PARTS = ("base", "gpu")


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def written(name: str) -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((FOLDER / name / "kustomization.yaml").read_text("utf-8"))
    texts = [(FOLDER / name / file).read_text("utf-8") for file in kustomization["resources"]]
    return [document for text in texts for document in documents(text)]


def built(name: str) -> list[dict[str, Any]]:
    """Return the documents that Kustomize builds from a folder."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this machine; files are checked as they are")
    ran = subprocess.run(["kubectl", "kustomize", str(FOLDER / name)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return documents(ran.stdout)


def containers(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    yield from (*pod.get("initContainers", ()), *pod.get("containers", ()))


def test_every_file_is_by_the_published_schemas() -> None:
    found = [*written("base"), *documents((FOLDER / "gpu" / "worker.yaml").read_text("utf-8"))[1:]]
    assert {document["kind"] for document in found} == {
        "PersistentVolumeClaim", "Service", "Deployment", "NetworkPolicy",
    }  # fmt: skip
    for document in found:
        kubernetes_validate.validate(document, VERSION, strict=True)
    found[1]["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(found[1], VERSION, strict=True)


@pytest.mark.parametrize("name", PARTS)
def test_what_kustomize_builds_is_by_the_published_schemas(name: str) -> None:
    found = built(name)
    assert len(found) == len(written("base"))
    for document in found:
        kubernetes_validate.validate(document, VERSION, strict=True)
        assert document["metadata"]["labels"]["app.kubernetes.io/name"] == "obscura"


def test_a_folder_of_ones_own_names_images_and_a_namespace(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operate" / "deploy-kubernetes.md").read_text("utf-8")
    own = page.partition("```yaml\n")[2].partition("```")[0].replace("../obscura/deploy", "obscura/deploy")
    shutil.copytree(FOLDER, tmp_path / "obscura" / "deploy" / "kubernetes")
    (tmp_path / "kustomization.yaml").write_text(own, "utf-8")
    found = built(str(tmp_path))
    assert {document["metadata"]["namespace"] for document in found} == {"obscura"}
    images = {container["image"] for document in found for container in containers(document)}
    assert images == {f"registry.example.org/obscura-{target}:1" for target in ("api", "worker")}


def test_gpus_are_asked_for_where_they_are_said_to_be() -> None:
    (worker,) = [document for document in built("gpu") if document["metadata"]["name"] == "worker"]
    pod = worker["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == container["resources"]["requests"]["nvidia.com/gpu"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert "/copies" in [mount["mountPath"] for mount in container["volumeMounts"]]  # the patch has replaced nothing


def test_every_container_is_limited_and_hardened_as_in_the_compose_file() -> None:
    found = written("base")
    assert [container["name"] for document in found for container in containers(document)] == [
        "migrate", "api", "keys", "worker",
    ]  # fmt: skip
    for document in found:
        for container in containers(document):
            assert container["resources"]["limits"].keys() >= {"cpu", "memory"}, container["name"]
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        if document["kind"] == "Deployment":
            pod = document["spec"]["template"]["spec"]
            assert pod["automountServiceAccountToken"] is False
            assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)


def test_only_settings_that_there_are_are_named() -> None:
    example = (FOLDER / "obscura.env.example").read_text("utf-8").splitlines()
    names = [line.partition("=")[0] for line in example if line and not line.startswith("#")]
    inside = [
        item["name"] for document in written("base") for each in containers(document) for item in each.get("env", ())
    ]
    known = {f"OBSCURA_{name.upper()}" for name in Settings.model_fields}
    assert {name for name in (*names, *inside) if name.startswith("OBSCURA_")} <= known
    assert {"OBSCURA_DATABASE_URL", "OBSCURA_REDIS_URL", "OBSCURA_STORAGE"} <= set(names)
    assert "OBSCURA_AUDIT_LOG=on" in example


def test_only_the_api_can_read_the_key_of_fingerprints_and_workers_get_copies_of_others(tmp_path: Path) -> None:
    (worker,) = [document for document in written("base") if document["metadata"]["name"] == "worker"]
    beside, trains = containers(worker)
    assert beside["restartPolicy"] == "Always"  # it goes on beside the worker
    assert "/keys" not in [mount["mountPath"] for mount in trains["volumeMounts"]]
    keys, copies = tmp_path / "keys", tmp_path / "copies"
    keys.mkdir()
    copies.mkdir()
    environment = {**os.environ, "KEYS": str(keys), "COPIES": str(copies)}
    script = beside["command"][-1].replace("sleep 5", "sleep 0.05")
    running = subprocess.Popen(["sh", "-c", script], env=environment, start_new_session=True)
    try:
        for name in ("ledger.pem", "ledger.pub.pem", "fingerprints.key"):
            (keys / name).write_text(name)
        (keys / "datasets").mkdir()
        for name in ("one.key", "two.key"):
            (keys / "datasets" / name).write_text(name)

        def there() -> set[str]:
            return {str(path.relative_to(copies)) for path in copies.rglob("*") if path.is_file()}

        everything = {"ledger.pem", "ledger.pub.pem", "datasets/one.key", "datasets/two.key"}
        wait_until(lambda: there() == everything, "the keys do not arrive")
        assert all((copies / name).read_bytes() == (keys / name).read_bytes() for name in everything)
        assert all((copies / name).stat().st_mode & 0o077 == 0 for name in everything)
        (keys / "datasets" / "one.key").unlink()
        wait_until(lambda: there() == everything - {"datasets/one.key"}, "a destroyed key stays")
        (keys / "datasets" / "two.key").unlink()
        wait_until(lambda: there() == {"ledger.pem", "ledger.pub.pem"}, "the last destroyed key stays")
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        running.wait(10)
