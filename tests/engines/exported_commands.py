"""Exported command lines in the engines' own argument parsers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.engines.environments import ROOT, Engine, NoEngineError
from tests.export.varied import Command, varied

_SCRIPT = Path(__file__).with_name("parse_commands.py")


class Answers(NamedTuple):
    """Name -> text, of command lines: refused with the parser's error, or not checked to the end with the reason."""

    refused: dict[str, str]
    unchecked: dict[str, str]
    asked: int


def refused_commands(engine: Engine) -> Answers:
    """What the engine's parser and configuration say to varied deployments."""
    return answers_to(engine, varied(engine.name, engine.version))


def answers_to(engine: Engine, commands: dict[str, Command]) -> Answers:
    """What the engine says to command lines.

    Raises:
        NoEngineError: the parser could not be imported.
    """
    command, environment = [str(engine.python()), str(_SCRIPT), engine.name], os.environ | {"PYTHONPATH": str(ROOT)}
    text = json.dumps({name: line._asdict() for name, line in commands.items()})
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False, env=environment)
    if done.returncode:
        raise NoEngineError(f"{engine.title}: its parser was not imported:\n{done.stderr.strip()[-600:]}")
    answers = json.loads(done.stdout)
    texts = ({name: said[key] for name, said in answers.items() if said[key]} for key in ("error", "unchecked"))
    return Answers(*texts, len(answers))
