"""docs/reference.md matches the command line, docs/engines.md the engines' rules, docs/python.md the code."""

import os
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT


@pytest.mark.parametrize("generator", ["generate_cli.py", "generate_engines.py", "generate_python.py"])
def test_the_page_is_up_to_date(generator: str) -> None:
    command = [sys.executable, str(ROOT / "docs" / generator), "--check"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_every_verb() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for verb in (
        "run",
        "simulate",
        "trace stats",
        "validate cache",
        "export",
        "verify",
        "calibrate operators",
        "calibrate steps",
    ):
        assert f"## `hisearch {verb}`" in text
