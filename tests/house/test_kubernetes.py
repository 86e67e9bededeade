"""The Kubernetes manifests follow the published schemas, are hardened, and distribute keys."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from service.settings import Settings
from tests.together import wait_until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = "1.37"
PARTS = ("base", "gpu")


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def written(name: str) -> list[dict[str, Any]]:
    """Return the documents of the base's files."""
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
