"""Exported command lines in the engines' own parsers, where an environment has the engine (see README.md)."""

from __future__ import annotations

import pytest

from tests.engines.environments import ENGINES
from tests.engines.exported_commands import answers_to, refused_commands
from tests.export.varied import Command


@pytest.mark.slow
@pytest.mark.parametrize("title", ENGINES)
def test_the_engine_takes_every_command(title: str) -> None:
    engine = ENGINES[title]
    if not engine.is_there():
        pytest.skip(f"NOT CHECKED: no {title}; run `make test-engines`, or set {engine.variable} to its Python")
    answers = refused_commands(engine)
    assert answers.refused == {}
    assert answers.asked >= (30 if engine.name == "vllm" else 16)
    assert len(answers.unchecked) <= answers.asked / 5, answers.unchecked
    wrong = {"unknown": ["--no-such-flag"], "no number": ["--max-num-seqs", "many"]}
    assert set(answers_to(engine, {name: Command(words) for name, words in wrong.items()}).refused) == set(wrong)


@pytest.mark.slow
def test_what_the_parser_cannot_see_is_refused() -> None:
    engine = ENGINES["vllm-0.19.1"]
    if not engine.is_there():
        pytest.skip(f"NOT CHECKED: no {engine.title}; run `make test-engines`, or set {engine.variable} to its Python")
    offload = ["--kv-offloading-backend", "native", "--kv-offloading-size", "8"]
    nixl = ["--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}']
    off, on = "--disable-hybrid-kv-cache-manager", "--no-disable-hybrid-kv-cache-manager"
    refused = answers_to(
        engine,
        {
            "manager on": Command(offload),
            "manager off": Command([*offload, off]),
            "no windows": Command([*offload, off], "windows"),
            "nixl": Command(nixl, "windows"),
            "nixl with it": Command([*nixl, on], "windows"),
        },
    ).refused
    assert set(refused) == {"manager on", "no windows", "nixl"}
