"""Run a private S3 server for tests and benchmarks: OpenStack Swift in a folder.

It needs Debian's packages swift-proxy, swift-account, swift-container and swift-object, without configuration.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from scripts.with_services import free_port

KEY, SECRET, BUCKET = "test:tester", "testing", "obscura"
PATIENCE_SECONDS = 60
_KINDS = ("account", "container", "object")
# The programs, with their configurations. The updater corrects lists after a crash of the container server.
_PROGRAMS = {f"{kind}-server": kind for kind in (*_KINDS, "proxy")} | {"object-updater": "object"}
_SWIFT = "[swift-hash]\nswift_hash_path_suffix = test\n[storage-policy:0]\nname = only\ndefault = yes\n"
_DEFAULT = """[DEFAULT]
swift_dir = {folder}
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
log_level = ERROR
"""
_STORE = (
    _DEFAULT
    + """devices = {folder}/devices
mount_check = false
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
[object-updater]
interval = 30
"""
)
_PROXY = (
    _DEFAULT
    + """[pipeline:main]
pipeline = catch_errors cache s3api tempauth copy slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{nobody}
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
user_test_reader = reading
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""
)
# Writes the location of the only replica of each kind. Runs with the Python of the Swift packages.
_RINGS = """
import sys
from swift.common.ring import RingBuilder
for kind, port in (each.split(":") for each in sys.argv[1:]):
    ring = RingBuilder(4, 1, 0)
    here = {"region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port), "device": "d", "weight": 1}
    ring.add_dev(here | {"replication_ip": here["ip"], "replication_port": here["port"]})
    ring.rebalance()
    ring.get_ring().save(f"{kind}.ring.gz")
"""


class SwiftServer:
    """A server with one bucket, initially stopped. Written objects survive `stop`.

    Raise FileNotFoundError if Swift is not installed.
    """

    def __init__(self, folder: Path) -> None:
        binary = shutil.which("swift-proxy-server")
        if binary is None:
            raise FileNotFoundError("OpenStack Swift is not installed")
        self._folder, self._binaries = folder, Path(binary).parent
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = {kind: free_port() for kind in ("proxy", *_KINDS)}
        self.url = f"http://127.0.0.1:{ports['proxy']}"
        user = Path(f"/proc/{os.getpid()}").owner()
        (folder / "devices" / "d").mkdir(parents=True)
        (folder / "swift.conf").write_text(_SWIFT)
        for kind in _KINDS:
            given = {"folder": folder, "kind": kind, "port": ports[kind], "user": user}
            (folder / f"{kind}.conf").write_text(_STORE.format(**given))
        python = Path(binary).read_text().splitlines()[0].removeprefix("#!").strip()
        stores = [f"{kind}:{ports[kind]}" for kind in _KINDS]
        subprocess.run((python, "-c", _RINGS, *stores), cwd=folder, check=True)
        given = {"folder": folder, "port": ports["proxy"], "user": user, "nobody": free_port()}
        (folder / "proxy.conf").write_text(_PROXY.format(**given))

    def start(self) -> None:
        """Start the server, wait until it answers, and create the bucket if it is missing."""
        self.spawn()
        wait_for_bucket(self.url)

    def spawn(self) -> None:
        self._processes = {program: self._spawn(program) for program in _PROGRAMS}

    def stop(self) -> None:
        """Kill all processes, like a power failure."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes.values():
            process.wait()
        self._processes = {}

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values() if process.poll() is None]

    def keep(self) -> None:
        """Restart dead processes, unless the server was stopped."""
        for program, process in self._processes.items():
            if process.poll() is not None:
                self._processes[program] = self._spawn(program)

    def _spawn(self, program: str) -> subprocess.Popen[bytes]:
        command = (str(self._binaries / f"swift-{program}"), str(self._folder / f"{_PROGRAMS[program]}.conf"))
        with (self._folder / "said").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
            )


def environment_of(url: str) -> dict[str, str]:
    """Return the environment variables with which AWS tools find the server and authenticate."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def wait_for_bucket(url: str) -> None:
    """Wait until a server answers, and create the bucket if it is missing; raise TimeoutError if it does not answer."""
    import botocore.session  # optional dependency
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    config = Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1})
    given = {"endpoint_url": url, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "config": config}
    client = botocore.session.get_session().create_client("s3", region_name="us-east-1", **given)
    deadline = time.monotonic() + PATIENCE_SECONDS
    with contextlib.closing(client):
        while time.monotonic() < deadline:
            try:
                client.create_bucket(Bucket=BUCKET)
                return
            except ClientError as error:
                if error.response["Error"]["Code"] in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    return
            except BotoCoreError:
                pass
            time.sleep(0.1)
    raise TimeoutError(f"no answer from {url}")
