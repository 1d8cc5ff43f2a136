"""A real PostgreSQL server for a test: a temporary folder, a free port, an unprivileged user."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

#: What it trusts: a password, to be found nowhere.
PASSWORD = "s3cret-Pa55"


@dataclass(frozen=True)
class Server:
    """A server with an empty database ``hisearch``."""

    port: int

    @property
    def url(self) -> str:
        return f"postgresql://tester:{PASSWORD}@127.0.0.1:{self.port}/hisearch"

    @property
    def shown(self) -> str:
        """Its address as it may be written down."""
        return f"postgresql://tester@127.0.0.1:{self.port}/hisearch"


def _program(name: str) -> str | None:
    programs = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(programs[-1]) if programs else shutil.which(name)


@contextlib.contextmanager
def postgresql() -> Iterator[Server]:
    """A server while this lasts. Skips the test where its programs are not installed."""
    initdb, postgres, createdb = _program("initdb"), _program("postgres"), _program("createdb")
    if initdb is None or postgres is None or createdb is None:
        reason = "PostgreSQL is NOT tested: initdb, postgres or createdb is missing (apt-get install postgresql)"
        print(reason, file=sys.__stderr__)  # past pytest's capture: a skip is easily overlooked
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="hisearch-postgresql-"))
    as_user = _unprivileged(folder)
    try:
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        data, port = folder / "data", _free_port()
        options = ["--auth=scram-sha-256", "--username=tester", f"--pwfile={folder / 'password'}", "--no-sync"]
        subprocess.run([initdb, "-D", data, *options], check=True, capture_output=True, cwd=folder, **as_user)
        settings = ["-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}"]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [postgres, "-D", data, *settings, "-c", "fsync=off"], stdout=log, stderr=log, cwd=folder, **as_user
            )
        try:
            _create_database(createdb, port)
            yield Server(port)
        finally:
            server.send_signal(signal.SIGINT)  # without waiting for clients
            server.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged(folder: Path) -> dict[str, int]:
    """PostgreSQL refuses to run as root: then it runs as nobody, who gets the folder."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _create_database(createdb: str, port: int) -> None:
    """As soon as the server answers."""
    environment = {**os.environ, "PGPASSWORD": PASSWORD}
    command = [createdb, "-h", "127.0.0.1", "-p", str(port), "-U", "tester", "hisearch"]
    for _ in range(300):
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError(done.stderr.decode())
