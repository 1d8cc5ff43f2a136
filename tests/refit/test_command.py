"""``python -m refit``: usage; the fits themselves are in the modules beside."""

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from refit.__main__ import app

ROOT = Path(__file__).parents[2]


def call(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_tables_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ran = call("profiles", tmp_path, "--tables", tmp_path / "empty")
    assert ran.exit_code == 1
    assert "neither it nor systems/data below it" in ran.output
    assert not list(tmp_path.glob("*.yaml"))


def test_hosts_are_fitted_to_something() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "refit", "hosts"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ran.returncode == 2
    assert "--silicon FILE.csv, --open-loop DIR or --served DIR" in " ".join(ran.stderr.replace("│", " ").split())
