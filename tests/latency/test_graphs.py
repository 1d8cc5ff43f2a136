"""CUDA graphs of an engine: which steps are launched kernel by kernel, and what that exposes."""

from __future__ import annotations

import numpy as np
import pytest
from latency_catalogue import H100, LLAMA_8B
from pydantic import ValidationError

from hisearch.latency.device_memory.plan import plan_memory
from hisearch.latency.estimator import build_estimator
from hisearch.latency.host import EAGER_LAUNCH_S
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.graphs import capture_sizes
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.host import RANGES

CATALOGUE = Catalogue()
#: Operators of Llama's layers that Python dispatches by itself, and under piecewise graphs.
EAGER, PIECES = 32 * 12, 32 * 4
SGLANG_SIZES = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16)]


def costs(profile, engine="vllm", **settings):
    limits = {"max_tokens": 4096, "max_sequences": 1024, "max_context_tokens": 400_000}
    spec = EngineSpec(name=engine, chunk_tokens=4096, **settings)
    priced = PricedWorker(LLAMA_8B, H100, Parallelism(), None, "bf16", spec, **limits)
    return build_estimator("p", CATALOGUE.get("LatencyProfile", profile).spec).compile(priced).seconds


def test_a_step_shorter_than_its_launches_waits_for_them():
    """One decode on an H100 takes 6 to 7 ms of the device, 8.4 ms of launches without graphs."""
    graphs, eager = (costs("roofline", enforce_eager=flag) for flag in (False, True))
    few, many = [600], [4000] * 256
    assert step_seconds(eager, [], few) == pytest.approx(EAGER * EAGER_LAUNCH_S)
    assert step_seconds(graphs, [], few) < step_seconds(eager, [], few)
    assert step_seconds(eager, [], many) == step_seconds(graphs, [], many)


def test_launches_fall_in_their_range():
    known = RANGES["launch_s"]
    assert known.low <= EAGER_LAUNCH_S <= known.high


@pytest.mark.parametrize(
    ("mode", "decode", "prompt"),
    [
        (None, 0, PIECES), ("full_and_piecewise", 0, PIECES), ("piecewise", PIECES, PIECES), ("full", 0, 0),
        ("full_decode_only", 0, EAGER), ("none", EAGER, EAGER),
    ],
)  # fmt: skip
def test_each_mode_launches_what_it_does_not_replay(mode, decode, prompt):
    profile = CATALOGUE.get("LatencyProfile", "vllm-h100-sxm").spec.engines["vllm"]
    floor = costs("vllm-h100-sxm", cudagraph_mode=mode).floor
    launch_s, most = profile.launch_s, profile.graph_batches[-1]
    own_s = floor.seconds(0, 0, prompts=False) if decode == 0 and mode != "none" else profile.schedule_s
    assert floor.seconds(0, 1, prompts=False) - own_s == pytest.approx(decode * launch_s)
    assert floor.seconds(0, 64, prompts=True) - own_s == pytest.approx(prompt * launch_s)
    assert floor.seconds(0, most + 1, prompts=False) - own_s == pytest.approx(EAGER * launch_s)


def test_tensorrt_llms_pieces_hold_steps_of_any_size():
    """Decodes beyond its largest graph too, which are dispatched one by one without them."""
    plain, pieces = (
        costs("trtllm-b200", "trtllm", cudagraph_mode=mode, max_cudagraph_capture_size=8).floor
        for mode in (None, "full_and_piecewise")
    )
    for tokens, prompts in ((9, False), (64, True), (4000, True)):
        more = plain.seconds(1, tokens, prompts=prompts) - pieces.seconds(1, tokens, prompts=prompts)
        launch_s = CATALOGUE.get("LatencyProfile", "trtllm-b200").spec.engines["trtllm"].launch_s
        assert more == pytest.approx((EAGER - PIECES) * launch_s)
    assert plain.seconds(8, 8, prompts=False) == pieces.seconds(8, 8, prompts=False)


def test_steps_are_padded_to_the_sizes_that_are_captured():
    plain = costs("vllm-h100-sxm")
    stated = costs("vllm-h100-sxm", cudagraph_capture_sizes=[16, 64])
    assert stated.token_s[1] == stated.token_s[16] == pytest.approx(plain.token_s[16])
    assert stated.token_s[17] == stated.token_s[64]
    eager = costs("vllm-h100-sxm", enforce_eager=True)
    assert eager.token_s[9] < plain.token_s[9] == plain.token_s[16]
    small = costs("vllm-h100-sxm", max_cudagraph_capture_size=20)
    assert small.token_s[17] == small.token_s[20]
    assert small.floor.graph_tokens == 20
    np.testing.assert_array_equal(small.token_s[:17], plain.token_s[:17])


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_other_engines_run_without_graphs_too(engine):
    profile = f"{engine}-h100-sxm"
    graphs, eager = (costs(profile, engine, enforce_eager=flag).floor for flag in (False, True))
    assert eager.seconds(1, 1, prompts=False) > graphs.seconds(1, 1, prompts=False)
    assert eager.seconds(1, 64, prompts=True) == graphs.seconds(1, 64, prompts=True)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_memory_of_graphs_is_free_without_them(engine):
    def capacity(**settings):
        spec = EngineSpec(name=engine, version="0.20.0" if engine == "vllm" else "", memory_fraction=0.8, **settings)
        return plan_memory(
            LLAMA_8B, H100, tensor_parallel=1, weight_dtype=None, kv_dtype="bf16", engine=spec
        ).kv_capacity_tokens

    more = capacity(enforce_eager=True) > capacity()
    # SGLang's graphs live outside the static share, which mem_fraction_static fixes.
    assert more == (engine != "sglang")
    if engine == "vllm":
        assert capacity() < capacity(cudagraph_mode="none") <= capacity(enforce_eager=True)


@pytest.mark.parametrize(
    ("engine", "settings", "message"),
    [
        ("sglang", {"cudagraph_mode": "full"}, "is full; SGLang has enforce_eager"),
        ("trtllm", {"cudagraph_mode": "full"}, "TensorRT-LLM has full_decode_only and full_and_piecewise alone"),
        ("vllm", {"enforce_eager": True, "cudagraph_mode": "full"}, "but enforce_eager leaves no graph"),
        ("vllm", {"enforce_eager": True, "max_cudagraph_capture_size": 8}, "needs CUDA graphs"),
        ("vllm", {"cudagraph_mode": "none", "cudagraph_capture_sizes": [8]}, "needs CUDA graphs"),
        ("vllm", {"cudagraph_capture_sizes": [8, 4]}, "need to rise"),
        ("vllm", {"cudagraph_capture_sizes": [4, 8], "max_cudagraph_capture_size": 16}, "largest captured size is 8"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(engine, settings, message):
    with pytest.raises(ValidationError, match=message):
        EngineSpec(name=engine, **settings)


@pytest.mark.parametrize(
    ("gib", "ranks", "version", "largest"),
    [
        (16, 1, "0.5.9", 8), (24, 1, "0.5.9", 24), (24, 4, "0.5.9", 80), (24, 1, "0.5.23", 48), (24, 8, "", 160),
        (48, 2, "0.5.9", 32), (48, 4, "0.5.23", 160), (80, 2, "0.5.23", 256), (80, 8, "", 512), (141, 1, "0.5.9", 256),
        (180, 1, "0.5.9", 512),
    ],
)  # fmt: skip
def test_sglangs_largest_graph_goes_by_memory_and_ranks(gib, ranks, version, largest):
    sizes = capture_sizes(EngineSpec(name="sglang", version=version), SGLANG_SIZES, gib * 2.0**30, ranks)
    assert sizes == [size for size in SGLANG_SIZES if size <= largest]
    assert sizes[-1] == largest


def test_graphs_of_a_profile_that_has_fewer_stay_as_they_are():
    assert capture_sizes(EngineSpec(name="sglang"), [1, 8, 16], 180 * 2.0**30, 8) == [1, 8, 16]


def test_a_stated_largest_graph_of_sglang_goes_on_by_16_and_by_32():
    engine = EngineSpec(name="sglang", max_cudagraph_capture_size=768)
    assert capture_sizes(engine, SGLANG_SIZES, 8 * 2.0**30, 1) == [*SGLANG_SIZES, *range(544, 769, 32)]


def test_a_profile_that_knows_no_sizes_has_small_ones_too():
    engine = EngineSpec(name="sglang", max_cudagraph_capture_size=768)
    sizes = capture_sizes(engine, [], 180 * 2.0**30, 1)
    assert (sizes[:4], sizes[-1]) == ([1, 2, 4, 8], 768)
    assert max(np.diff(sizes)) == 16


def test_decodes_beyond_sglangs_largest_graph_are_launched_one_by_one():
    floor = costs("sglang-h100-sxm", "sglang").floor
    assert floor.graph_tokens == 256
    assert floor.seconds(0, 257, prompts=False) > 2 * floor.seconds(0, 256, prompts=False)
