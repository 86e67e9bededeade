"""A Python that has imported everything already: its processes cost a fork instead of seconds of imports.

`warm_python(folder)` yields a program that is called as Python is. The modules in `MAINS`, and what follows `-c`, run
in a process that is forked from one that waits with everything imported; whatever else it is told, Python itself does.
The program stays for as long as the forked process lives, hands on signals and the exit status, and takes the whole
process group with it when it is killed. `processes` finds what it has forked by the words that it was called with.

How processes start for real is what other tests are about: those of the wheel and of the supervisor.
"""

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MAINS = (
    "obscura.cli",
    "workers.train.runner",
    "workers.train.followers",
    "tests.crash.acts",
    "tests.service.ledger.hammer_worker",
    "tests.workers.tiny_runner",
    "tests.workers.recipes.training_ranks",
    "tests.service.api.api_process",
)
_MORE = (  # what is imported by what a process does first; optimisers import the last one, which takes a second
    *("uvicorn", "uvicorn.lifespan.on", "uvicorn.loops.asyncio", "anyio._backends._asyncio", "sqlite3"),
    *("httpcore", "encodings.ascii", "encodings.cp437", "encodings.idna", "rich._emoji_codes", "typer._adapters"),
    *(f"workers.train.kinds.{kind}" for kind in ("evaluate", "preview", "sample", "train")),
    *("PIL.ImageDraw", "dp_accounting.pld", "scipy.optimize", "torch.utils.serialization", "torch._dynamo"),
)
_DESCRIPTORS_MAX = 64
_OUT_OF_THE_WAY = 500  # descriptors are moved there before they get the numbers that they had
_STARTED: list[subprocess.Popen[bytes]] = []  # nobody waits for them: others may use them

_PROGRAM = """\
#!{python} -IS
import array, json, os, signal, socket, sys
words = sys.argv[2:] if sys.argv[1:2] == ["-P"] else sys.argv[1:]
if words[:1] == ["-c"]:
    what = dict(code=words[1], arguments=["-c", *words[2:]])
elif words[:1] == ["-m"] and words[1] in {mains!r}:
    what = dict(main=words[1], arguments=words[2:])
else:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
parent, kept = os.getppid(), [int(name) for name in os.listdir("/proc/self/fd")]
fds = [fd for fd in kept if os.path.exists(f"/proc/self/fd/{{fd}}") and os.get_inheritable(fd)]
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
order = dict(**what, environment=dict(os.environ), folder=os.getcwd(), numbers=fds)
body = json.dumps(order).encode()
socket.send_fds(connection, [len(body).to_bytes(4, "big")], fds)
connection.sendall(body)
def hand_on(number, frame=None):
    try:
        connection.send(bytes([number]))
    except OSError:
        pass
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, hand_on)
connection.settimeout(0.2)
while True:
    try:
        answer = connection.recv(4)
        break
    except TimeoutError:
        if os.getppid() != parent:
            parent = os.getppid()
            hand_on(signal.SIGTERM)
status = int.from_bytes(answer, "big", signed=True) if answer else 1
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if status != -9 else None
    os.kill(os.getpid(), -status)
os._exit(status)
"""


def processes(program: str, *words: str) -> list[int]:
    """Ids of the processes that the program has forked, and that have not ended, with all these words."""
    found: dict[int, list[str]] = {}
    for path in Path(program).parent.glob("forked/*"):
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            found[int(path.name)] = path.read_text().split("\0")
    return [pid for pid, given in found.items() if set(words) <= set(given)]


@contextlib.contextmanager
def warm_python(folder: Path) -> Iterator[str]:
    """Start the process that waits, unless one does that was started in the same folder; yield the program.

    The process ends when nobody uses it any more: what it reads is a pipe that all its users keep open.
    """
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        users = folder / "users"
        if not users.exists():
            os.mkfifo(users)
        reading = os.open(users, os.O_RDONLY | os.O_NONBLOCK)
        using = os.open(users, os.O_WRONLY)
        if not _answers(folder / "socket"):
            _start(folder, reading)
        os.close(reading)
    try:
        yield str(folder / "python")
    finally:
        os.close(using)


def _answers(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(address)) == 0


def _start(folder: Path, stdin: int) -> None:
    address, program = folder / "socket", folder / "python"
    address.unlink(missing_ok=True)
    program.write_text(_PROGRAM.format(python=sys.executable, mains=MAINS, address=str(address)))
    program.chmod(0o755)
    (folder / "forked").mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OBSCURA_")}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.warm", str(program), str(address)],
        env=kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), kept.get("PYTHONPATH", "")])},
        stdin=stdin,
        stdout=subprocess.PIPE,
        start_new_session=True,  # it may outlive who has started it
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", "the warm Python did not start"
    process.stdout.close()
    _STARTED.append(process)


class _Waiting:
    """The process that waits, forks for every order, and ends when its stdin is closed."""

    def __init__(self, address: str) -> None:
        self._forked = Path(address).with_name("forked")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(16)
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, socket.socket | None] = {}  # by process id; none whose program is gone

    def run(self) -> None:
        """Take orders."""
        self._selector.register(0, selectors.EVENT_READ, ("stdin", 0))
        self._selector.register(self._listener, selectors.EVENT_READ, ("order", 0))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            for key, _ in self._selector.select():
                what, pid = key.data
                if what == "stdin":
                    for child in self._children:
                        _kill_group(child)
                    return
                if what == "order":
                    self._take(self._listener.accept()[0])
                elif what == "program" and pid in self._children:
                    self._hear(pid, key.fileobj)
                elif what == "end":
                    self._tell(pid, key.fileobj)

    def _take(self, program: socket.socket) -> None:
        size, fds, _, _ = socket.recv_fds(program, 4, _DESCRIPTORS_MAX)
        body = b""
        while size and len(body) < int.from_bytes(size, "big"):
            body += program.recv(1 << 16)
        if not size:
            return
        order = json.loads(body)
        pid = os.fork()
        if pid == 0:
            words = [order.get("main", ""), *order["arguments"]]
            written = self._forked.with_name(f"words.{os.getpid()}")
            written.write_text("\0".join(words))
            written.rename(self._forked / str(os.getpid()))
            _become(order, fds)
        for fd in fds:
            os.close(fd)
        self._children[pid] = program
        self._selector.register(program, selectors.EVENT_READ, ("program", pid))
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, ("end", pid))

    def _hear(self, pid: int, program: Any) -> None:
        try:
            numbers = program.recv(16)
        except ConnectionError:
            numbers = b""
        for number in numbers:
            os.kill(pid, number)
        if not numbers:  # it was killed
            _kill_group(pid)
            self._selector.unregister(program)
            program.close()
            self._children[pid] = None

    def _tell(self, pid: int, descriptor: Any) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        (self._forked / str(pid)).unlink(missing_ok=True)
        _kill_group(pid)  # what it left behind
        program = self._children.pop(pid)
        if program is not None:
            with contextlib.suppress(OSError):
                program.send(status.to_bytes(4, "big", signed=True))
            self._selector.unregister(program)
            program.close()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _become(order: dict[str, Any], fds: list[int]) -> None:
    """Be the process that was ordered. Never returns."""
    status: Any = 1
    try:
        os.setsid()
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, _OUT_OF_THE_WAY) for fd in fds]
        os.closerange(0, _OUT_OF_THE_WAY)
        for fd, number in zip(moved, order["numbers"], strict=True):
            os.dup2(fd, number)
            os.close(fd)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["folder"])
        importlib.reload(importlib.import_module("service.failpoints"))  # reads the environment, as a start does
        status = _run(order)
    except SystemExit as leaving:
        status = leaving.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
        status = 1
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(int(status or 0))


def _run(order: dict[str, Any]) -> Any:
    arguments = order["arguments"]
    if "code" in order:
        sys.argv = arguments
        exec(compile(order["code"], "<string>", "exec"), {"__name__": "__main__"})
        return 0
    main = importlib.import_module(order["main"])
    for name in {"--supervisor", "--runner"}.intersection(arguments):  # it looks whether its parent lives: see `_hear`
        arguments[arguments.index(name) + 1] = str(os.getppid())
    sys.argv = [f"{Path(main.__file__ or '').with_name('__main__.py')}", *arguments]
    sys.modules["__main__"].__package__ = order["main"]  # by which usage names the program
    return main.main()


def _do_once() -> None:
    """Do what every process would do first, each for itself: a command, a service and a training."""
    import typer
    from PIL import Image
    from sqlalchemy.orm import configure_mappers

    from obscura.cli.app import app
    from obscura.client.transport import trusted
    from service.api.routes import routers
    from service.db.schema import upgrade_schema

    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(app)
    trusted()
    routers()
    configure_mappers()
    Image.preinit()
    with tempfile.TemporaryDirectory() as folder:
        upgrade_schema(f"sqlite:///{folder}/obscura.db")
    atexit._clear()  # what libraries would tidy up at the end: it takes a process longer than a command
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]


def main(program: str, address: str) -> None:
    """Import everything and wait for orders."""
    sys.executable = program  # so that what a forked service starts is warm, too
    for name in (*MAINS, *_MORE):
        importlib.import_module(name)
    _do_once()
    gc.collect()
    gc.freeze()
    _Waiting(address).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
