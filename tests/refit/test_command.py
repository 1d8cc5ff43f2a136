"""``python -m refit``: usage; the fits themselves are in the modules beside."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "refit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_tables_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ran = call("profiles", tmp_path, "--tables", tmp_path / "empty")
    assert ran.returncode == 1
    assert "neither it nor systems/data below it" in ran.stderr
    assert not list(tmp_path.glob("*.yaml"))


def test_hosts_are_fitted_to_something() -> None:
    ran = call("hosts")
    assert ran.returncode == 2
    assert "--silicon" in ran.stderr
