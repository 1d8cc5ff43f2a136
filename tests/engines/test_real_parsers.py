"""Exported command lines in the engines' own parsers, where an environment has the engine (see README.md)."""

from __future__ import annotations

import pytest

from tests.engines.environments import ENGINES
from tests.engines.exported_commands import errors_of, refused_commands


@pytest.mark.slow
@pytest.mark.parametrize("title", ENGINES)
def test_the_engine_takes_every_command(title: str) -> None:
    engine = ENGINES[title]
    if not engine.is_there():
        pytest.skip(f"NOT CHECKED: no {title}; run `make test-engines`, or set {engine.variable} to its Python")
    refused, asked = refused_commands(engine)
    assert refused == {}
    assert asked >= 16
    wrong = errors_of(engine, {"unknown": ["--no-such-flag"], "no number": ["--max-num-seqs", "many"]})
    assert all(wrong.values())
