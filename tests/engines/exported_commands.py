"""Exported command lines in the engines' own argument parsers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.engines.environments import ROOT, Engine, NoEngineError
from tests.export.varied import varied

_SCRIPT = Path(__file__).with_name("parse_commands.py")


def refused_commands(engine: Engine) -> tuple[dict[str, str], int]:
    """Name -> the parser's error, of varied deployments that it refuses; and how many it was asked about."""
    commands = varied(engine.name, engine.version)
    answers = errors_of(engine, commands)
    return {name: error for name, error in answers.items() if error}, len(commands)


def errors_of(engine: Engine, commands: dict[str, list[str]]) -> dict[str, str]:
    """Name -> the parser's error, or "".

    Raises:
        NoEngineError: the parser could not be imported.
    """
    command, environment = [str(engine.python()), str(_SCRIPT), engine.name], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, input=json.dumps(commands), text=True, capture_output=True, check=False, env=environment
    )
    if done.returncode:
        raise NoEngineError(f"{engine.title}: its parser was not imported:\n{done.stderr.strip()[-600:]}")
    answers: dict[str, str] = json.loads(done.stdout)
    return answers
