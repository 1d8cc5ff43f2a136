"""KV capacity against every start-up log that is known, and the profiling run's rules by version."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
from latency_catalogue import H100, LLAMA_8B, LLAMA_70B, VLLM

from hisearch.latency.device_memory.constants import CONSTANTS, GIB, MIB, Constant, constant
from hisearch.latency.device_memory.plan import MemoryPlan, plan_memory, usable_bytes
from hisearch.latency.device_memory.profiling_run import encoding_bytes, release_of
from hisearch.latency.sharding import Parallelism
from hisearch.specs.documents.catalogue import Catalogue

DOCS = Path(__file__).parents[2] / "docs"
#: Within 1 % but for these: the first states neither limits nor what else ran, the second not which H20 it is.
LOOSE = {"vLLM of July 2025": 0.08, "vLLM 0.19.0, Qwen3.5-27B": 0.02}


def logs() -> ModuleType:
    """``docs/kv_logs.py``, whose table docs/accuracy.md shows."""
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("kv_logs")
    finally:
        sys.path.remove(str(DOCS))


LOGS = logs()


def plan(version: str = "", *, tp: int = 1, model=LLAMA_8B, accelerator=H100, engine=VLLM, **more) -> MemoryPlan:
    return plan_memory(
        model, accelerator, tensor_parallel=tp, weight_dtype=None, kv_dtype="bf16", engine=engine,
        engine_version=version, **more,
    )  # fmt: skip


@pytest.mark.parametrize("logged", LOGS.LOGGED, ids=lambda logged: logged.title)
def test_planned_capacity_is_what_the_engine_logged(logged) -> None:
    planned = logged.plan(Catalogue())
    error = next((error for start, error in LOOSE.items() if logged.title.startswith(start)), 0.01)
    assert planned.kv_capacity_tokens == pytest.approx(logged.tokens, rel=error)


@pytest.mark.parametrize("logged", LOGS.LOGGED, ids=lambda logged: logged.title)
def test_no_log_is_held_by_a_constant_that_it_chose_alone(logged) -> None:
    alone = LOGS.without_itself(logged, Catalogue())
    # Of SGLang there are two logs, so that each is predicted from the other.
    assert alone is None or abs(alone) < (0.01 if logged.engine == "vllm" else 0.02)


def test_the_engine_version_of_open_loop_runs_moves_nothing_that_they_decide() -> None:
    """Without a version the same runs are within 1 % too: documents of today state none."""
    for logged in LOGS.LOGGED:
        if logged.version == "0.15.1":
            planned = dataclasses.replace(logged, version="").plan(Catalogue())
            assert planned.kv_capacity_tokens == pytest.approx(logged.tokens, rel=0.01)


def test_constants_lie_in_their_ranges_and_state_unit_and_source() -> None:
    assert all(item.least <= item.value <= item.most and item.unit and item.source for item in CONSTANTS.values())


@pytest.mark.parametrize("value", [0.05, 3.5])
def test_a_constant_outside_its_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"bytes is outside 0\.1 to 3"):
        Constant(value, "bytes", 0.1, 3.0, "assumed")


def test_what_cuda_offers_is_stated_or_a_share_of_memory() -> None:
    stated = Catalogue().get("Accelerator", "rtx4090").spec
    assert usable_bytes(stated) == 25_250_627_584
    assert 78.9 * GIB < usable_bytes(H100) < 79.3 * GIB


def test_no_accelerator_keeps_all_of_its_memory() -> None:
    with pytest.raises(ValueError, match="must be less than memory_bytes"):
        type(H100).model_validate(H100.model_dump() | {"reserved_bytes": H100.memory_bytes})


@pytest.mark.parametrize("version", ["", "nightly", "main-1a2b"])
def test_versions_without_a_number_are_recent_ones(version: str) -> None:
    assert release_of(version) == release_of("")
    assert plan(version) == plan("0.19.0")


@pytest.mark.parametrize(
    ("earlier", "later", "field"),
    [
        ("0.11.0", "0.11.1", "compiles"),
        ("0.15.1", "0.17.0", "fuses"),
        ("0.19.1", "v0.20.0rc1", "counts_graphs"),
    ],
)
def test_rules_by_version(earlier: str, later: str, field: str) -> None:
    assert not getattr(release_of(earlier), field)
    assert getattr(release_of(later), field)


def test_sorting_takes_more_than_masking_in_place() -> None:
    engine = VLLM.model_copy(update={"max_running_requests": 1024})
    sorted_, masked = plan("0.16.0", engine=engine), plan("0.17.0", engine=engine)
    difference = 1024 * LLAMA_8B.vocab_size * (constant("sort_sampler") - constant("sampler"))
    assert sorted_.activation_bytes - masked.activation_bytes == pytest.approx(difference)


def test_compiling_allocates_the_embedding_again_and_eager_does_not() -> None:
    engine = VLLM.model_copy(update={"max_running_requests": 16, "chunk_tokens": 2048})
    kept, table = 4 * 2048 * 4096, 128256 * 4096 * 2
    assert plan("0.15.1", engine=engine).activation_bytes == table + kept + 60 * MIB
    assert plan("0.15.1", engine=engine, eager=True).activation_bytes < table / 2


def test_the_workspace_of_fused_all_reduce_is_for_two_ranks_of_hopper_from_0_17_on() -> None:
    before, after = plan("0.16.0", tp=2), plan("0.17.0", tp=2)
    assert after.runtime_bytes - before.runtime_bytes == 4 * 2 * 64 * MIB
    off = VLLM.model_copy(update={"fused_all_reduce": False})
    assert plan("0.17.0", tp=2, engine=off).runtime_bytes == before.runtime_bytes
    groups = Parallelism(2, attention_data=2)
    assert plan("0.17.0", tp=2, parallelism=groups).runtime_bytes == before.runtime_bytes


def test_graphs_are_subtracted_from_0_20_on_where_there_are_any() -> None:
    assert plan("0.20.0").runtime_bytes - plan("0.19.1").runtime_bytes == constant("graph_estimate")
    assert plan("0.20.0", eager=True).runtime_bytes == plan("0.19.1").runtime_bytes


def test_nccl_counts_in_full_before_the_snapshot_came_second() -> None:
    small = VLLM.model_copy(update={"chunk_tokens": 2048})
    former, later = (plan(version, tp=4, model=LLAMA_70B, engine=small) for version in ("0.11.0", "0.11.1"))
    assert former.runtime_bytes > later.runtime_bytes + GIB
    assert former.kv_capacity_tokens < later.kv_capacity_tokens


def test_an_engine_that_states_its_version_is_planned_by_it() -> None:
    class Versioned(type(VLLM)):
        version: str = "0.20.0"

    stated = Versioned(name="vllm")
    assert plan_memory(
        LLAMA_8B, H100, tensor_parallel=1, weight_dtype=None, kv_dtype="bf16", engine=stated
    ) == plan("0.20.0")  # fmt: skip


def test_towers_take_memory_and_images_are_encoded_before_the_dummy_batch() -> None:
    """Qwen3.5-27B: 27 layers of 4 x 1152^2 + 2 x 1152 x 4304, patches of 2 x 16 x 16 x 3, 2,304 positions, a projector
    4608 - 4608 - 5120. llama.cpp states 887.99 MiB for the same file in 16 bits, norms and biases included.
    """
    model = Catalogue().get("Model", "qwen3.5-27b").spec
    layers = 27 * (4 * 1152**2 + 2 * 1152 * 4304)
    parameters = layers + 1152 * (2 * 16 * 16 * 3 + 2304) + 4608 * (4608 + 5120)
    assert model.towers.parameters == parameters
    assert 2 * parameters == pytest.approx(887.99 * 2**20, rel=0.015)
    bare = model.model_copy(update={"towers": None})
    both = [plan("0.19.0", model=each, tp=2).weights_bytes for each in (model, bare)]
    assert both[0] - both[1] == parameters
    # One image of 16,384 tokens, of four patches each: its encoding stays while 2,048 tokens pass.
    temporaries, kept = encoding_bytes(model, Parallelism(2), 2048)
    assert kept == 2 * 16_384 * 5120
    assert temporaries - kept == 2 * 65_536 * (3 * 1152 + 4304)
    assert encoding_bytes(bare, Parallelism(2), 2048) == (0.0, 0.0)
    # Two of them fill a step of 32,768.
    assert encoding_bytes(model, Parallelism(2), 40_000)[1] == 2 * kept


def test_llama_4_keeps_its_vision_tower_and_ten_million_positions() -> None:
    shipped, two = Catalogue().get("Model", "llama-4-scout").spec, {"tp": 2, "parallelism": Parallelism(2, expert=2)}
    scout = shipped.model_copy(update={"weight_dtype": "fp8", "max_context_tokens": 1_048_576})
    bare = scout.model_copy(update={"huggingface_id": "somebody/else", "towers": None})
    more = plan("0.15.1", model=scout, **two).weights_bytes - plan("0.15.1", model=bare, **two).weights_bytes
    positions = (10_485_760 - 1_048_576) * 128 * 2
    assert more == pytest.approx(0.87e9 + positions, rel=1e-9)
