"""The recorder's part of LMCache's connector that needs neither vLLM nor LMCache."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hisearch.record import vllm_lmcache
from hisearch.record.cases import CaseError, EngineError
from hisearch.record.vllm_random import random_lmcache_case

OFFLOAD: dict[str, Any] = {
    "connector": "lmcache", "capacity_tokens": 4000, "to_host": [0.5, 0.01], "to_device": [0.25, 0.02],
}  # fmt: skip


def test_settings_are_checked() -> None:
    checked = vllm_lmcache.checked(OFFLOAD, 16)
    assert (checked["chunk_tokens"], checked["eviction"], checked["save_decode"]) == (256, "lru", False)
    with pytest.raises(CaseError, match="offload: chunks: unknown key"):
        vllm_lmcache.checked(OFFLOAD | {"chunks": 1}, 16)
    with pytest.raises(CaseError, match="offload: to_host: missing"):
        vllm_lmcache.checked({key: value for key, value in OFFLOAD.items() if key != "to_host"}, 16)
    with pytest.raises(CaseError, match="chunk_tokens: expected whole blocks of 32 and 16 tokens"):
        vllm_lmcache.checked(OFFLOAD | {"chunk_tokens": 48}, 32)
    with pytest.raises(CaseError, match="eviction: expected one of lru"):
        vllm_lmcache.checked(OFFLOAD | {"eviction": "arc"}, 16)


def test_random_cases_are_usable() -> None:
    for seed in range(50):
        settings, rows, block_tokens = random_lmcache_case(random.Random(seed))
        checked = vllm_lmcache.checked(settings["offload"], block_tokens)
        assert rows
        assert checked["capacity_tokens"] >= 2 * checked["chunk_tokens"]


class Side:
    """A connector that copies what it is asked to."""

    def __init__(self, copies: vllm_lmcache.Copies, loads: int, saves: int) -> None:
        self.copies, self.loads, self.saves = copies, loads, saves

    def bind_connector_metadata(self, metadata: Any) -> None:
        pass

    clear_connector_metadata = staticmethod(lambda: None)
    get_block_ids_with_load_errors = staticmethod(set)

    def start_load_kv(self, context: Any) -> None:
        if self.loads:
            self.copies.load(self.loads)

    def wait_for_save(self) -> None:
        if self.saves:
            self.copies.store(self.saves)


@pytest.mark.parametrize(
    ("loads", "saves", "end_s", "held_s"),
    [(0, 0, 3.0, None), (50, 0, 4.25, 3.25), (0, 100, 4.5, 4.5), (50, 100, 5.75, 5.75)],
)
def test_a_step_waits_for_its_copies_and_holds_the_scheduler(
    loads: int, saves: int, end_s: float, held_s: float | None
) -> None:
    worker = vllm_lmcache.Worker.__new__(vllm_lmcache.Worker)
    worker.copies = vllm_lmcache.Copies([0.5, 0.01], [0.25, 0.02])
    worker.side = Side(worker.copies, loads, saves)
    assert worker.run(SimpleNamespace(kv_connector_metadata=None), 2.0, 1.0) == (
        pytest.approx(end_s),
        held_s if held_s is None else pytest.approx(held_s),
    )
    assert (worker.copies.loaded_tokens, worker.copies.stored_tokens) == (loads, saves)


def test_lmcache_that_is_not_installed() -> None:
    if any("lmcache" in path for path in sys.path):
        pytest.skip("LMCache is on the path")
    with pytest.raises(EngineError, match=r"pip install --no-deps lmcache==0\.4\.4 "):
        vllm_lmcache.install("0.19.1")
    with pytest.raises(EngineError, match=r"pip install --no-deps lmcache==0\.5\.6 "):
        vllm_lmcache.install("0.33.0")
    with pytest.raises(EngineError, match=r"recorded under vLLM 0.19 and 0.33, not 0.24.0"):
        vllm_lmcache.install("0.24.0")
