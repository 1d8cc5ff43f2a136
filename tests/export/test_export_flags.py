"""Every flag that is written exists in the engine, and carries the deployment's value."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from hisearch.export.engines.alternative import other_engine
from hisearch.export.engines.flags import TABLES, engine_flags, router_flags
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.engines.releases import READ, SGLANG_EVICTIONS
from hisearch.export.engines.trtllm_options import llm_api_options
from hisearch.export.engines.weights import needs_checkpoint
from hisearch.export.servers.placement import place
from hisearch.export.servers.roles import server_options_text
from hisearch.specs.versions import precedes
from tests.export.command_lines import known_flags, parse


@pytest.fixture
def launch(build_deployment: Any, build_model: Any, build_accelerator: Any) -> Any:
    def build(*, fp8: bool = True, model: dict[str, Any] | None = None, **changes: Any) -> Launch:
        return Launch(
            build_deployment(**changes).pool, build_model(**(model or {})), build_accelerator(fp8=fp8), 400_000
        )

    return build


@pytest.mark.parametrize("engine", TABLES)
def test_every_flag_of_the_table_exists(engine: Any) -> None:
    assert {flag for flag, _ in TABLES[engine]} <= set().union(*(known_flags(engine, v) for v in READ[engine]))
    assert {"--host", "--port"} <= known_flags(engine).keys()


_TIERS = [{"medium": "ddr5", "gib": 256, "scope": "worker"}]
_DISK = {"medium": "nvme-gen5", "gib": 3500, "scope": "node"}


@pytest.mark.parametrize(
    ("engine", "pool"),
    [
        ({"name": "sglang"}, {}),
        ({"name": "sglang", "eviction": "lfu", "schedule": "dfs-weight", "mixed_chunk": True, "overlap": False}, {}),
        ({"name": "sglang", "schedule": "priority", "prefix_caching": False, "chunked_prefill": False}, {}),
        ({"name": "sglang", "receive_interval": 30, "fused_all_reduce": True}, {}),
        ({"name": "sglang", "stream_interval": 30, "api_servers": 6}, {}),
        ({"name": "vllm", "stream_interval": 20, "api_servers": 4}, {}),
        ({"name": "trtllm", "stream_interval": 10, "api_servers": 4}, {}),
        ({"name": "sglang"}, {"kv_dtype": "fp8", "weight_dtype": "fp8", "tiers": [*_TIERS, _DISK]}),
        ({"name": "sglang"}, {"kv_dtype": "fp4", "tiers": _TIERS, "movement": {"write_policy": "write_back"}}),
        (
            {"name": "sglang", "version": "0.5.9"},
            {"kv_dtype": "fp16", "tiers": _TIERS, "movement": {"kv_connector": "lmcache"}},
        ),
        ({"name": "vllm"}, {}),
        ({"name": "vllm", "fused_all_reduce": False}, {}),
        ({"name": "vllm", "schedule": "priority", "overlap": False, "prefix_caching": False}, {"kv_dtype": "fp8"}),
        ({"name": "vllm", "chunked_prefill": False, "long_prefill_tokens": 9, "reserve_full_prompt": False}, {}),
        ({"name": "vllm"}, {"weight_dtype": "fp8", "tiers": _TIERS, "movement": {"store_threshold": 2}}),
        ({"name": "vllm"}, {"kv_dtype": "fp16", "tiers": _TIERS, "movement": {"kv_connector": "lmcache"}}),
        ({"name": "trtllm", "capacity_policy": "max_utilization"}, {"tiers": _TIERS, "kv_dtype": "fp8"}),
    ],
)
def test_every_command_line_is_one_that_the_engine_takes(
    launch: Any, engine: dict[str, Any], pool: dict[str, Any]
) -> None:
    words = [word for flag in engine_flags(launch(engine=engine, pool=pool)) for word in flag]
    parsed = parse(engine["name"], words, engine.get("version", ""))
    if engine["name"] == "sglang":
        assert parsed["--chunked-prefill-size"] == ["-1" if engine.get("chunked_prefill") is False else "8192"]
        assert parsed["--max-running-requests"] == ["256"]
        assert parsed["--max-total-tokens"] == ["400000"]


@pytest.mark.parametrize("eviction", ["fifo", "mru", "filo"])
def test_an_eviction_that_sglang_s_command_line_lacks_is_refused(launch: Any, eviction: str) -> None:
    for version in READ["sglang"]:
        choices = known_flags("sglang", version)["--radix-eviction-policy"]["choices"]
        known = {name for name, since in SGLANG_EVICTIONS.items() if not precedes(version, since)}
        assert known == set(choices) - {"tlru"}  # Which is not simulated.
    with pytest.raises(ExportError, match=f"has no --radix-eviction-policy {eviction}; it takes lru, lfu, slru or"):
        engine_flags(launch(engine={"eviction": eviction}))
    assert engine_flags(launch(engine={"eviction": eviction, "prefix_caching": False}))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--no-such-flag"], "has no --no-such-flag"),
        (["--schedule-policy", "fastest"], "expected one of"),
        (["--schedule-policy"], "needs a value"),
        (["--disable-radix-cache", "yes"], "takes nothing"),
        (["--tp-size", "1", "--tp-size", "2"], "given twice"),
    ],
)
def test_the_check_itself_refuses(words: list[str], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        parse("sglang", words)


@pytest.mark.parametrize("policy", ["random", "round_robin", "power_of_two", "cache_aware"])
def test_every_router_command_line_is_taken(build_deployment: Any, policy: str) -> None:
    flags = router_flags(build_deployment(router={"policy": policy}).router)
    words = [word for flag in flags for word in flag]
    parse("sglang-router", ["--worker-urls", "http://a:1", "http://b:2", *words, "--host", "0.0.0.0", "--port", "1"])
    assert ("--policy", policy) in flags
    assert (("--cache-threshold", "0.3") in flags) == (policy == "cache_aware")


def test_the_router_s_tree_and_policies_that_it_lacks(build_deployment: Any) -> None:
    trimmed = build_deployment(router={"max_tree_characters": 4000, "eviction_interval_s": 30}).router
    words = [word for flag in router_flags(trimmed) for word in flag]
    parsed = parse("sglang-router", words)
    assert (parsed["--max-tree-size"], parsed["--eviction-interval-secs"]) == (["4000"], ["30"])
    for policy in ("bucket", "consistent_hash", "kv_aware"):
        with pytest.raises(ExportError, match=f"sglang-router 0.3.2 has no policy {policy}; it takes random"):
            router_flags(build_deployment(router={"policy": policy}).router)


@pytest.mark.parametrize(
    ("speculation", "config"),
    [
        (None, None),
        ({"method": "mtp", "draft_tokens": 3}, {"method": "mtp", "num_speculative_tokens": 3}),
        ({"method": "ngram", "draft_tokens": 2}, {"method": "ngram", "num_speculative_tokens": 2}),
        (
            {"method": "eagle", "draft_tokens": 1, "draft_weights": "acme/head"},
            {"method": "eagle", "num_speculative_tokens": 1, "model": "acme/head"},
        ),
        (
            {"method": "eagle3", "draft_tokens": 2},
            {"method": "eagle3", "num_speculative_tokens": 2, "model": "acme/measured"},
        ),
    ],
)
def test_drafted_tokens(launch: Any, speculation: dict[str, Any] | None, config: dict[str, Any] | None) -> None:
    curve = {"tokens_per_step": [1.8, 2.4], "workload": "w", "source": "s", "as_of": "2026-01-01"}
    model = {"speculation": {"eagle3": curve | {"draft_weights": "acme/measured"}}}
    flags = {
        flag: values
        for flag, *values in engine_flags(launch(engine={"name": "vllm", "speculation": speculation}, model=model))
    }
    assert [json.loads(text) for text in flags.get("--speculative-config", [])] == ([] if config is None else [config])
    by_ngram = speculation is not None and speculation["method"] == "ngram"
    assert ("--no-async-scheduling" in flags) == by_ngram


def test_a_head_without_a_checkpoint_is_refused_and_left_out_elsewhere(launch: Any) -> None:
    drafting = launch(engine={"name": "vllm", "speculation": {"method": "eagle", "draft_tokens": 1}})
    with pytest.raises(ExportError, match=r"pool main: eagle has weights of its own; name .*draft_weights"):
        engine_flags(drafting)
    other, _ = other_engine(drafting.pool.engine)
    assert other.speculation == drafting.pool.engine.speculation


@pytest.mark.parametrize(
    ("speculation", "flags"),
    [
        (None, {}),
        (
            {"method": "mtp", "draft_tokens": 3},
            {"algorithm": "NEXTN", "num-steps": "3", "eagle-topk": "1", "num-draft-tokens": "4"},
        ),
        (
            {"method": "ngram", "draft_tokens": 7},
            {"algorithm": "NGRAM", "num-draft-tokens": "8", "ngram-max-bfs-breadth": "1"},
        ),
        (
            {"method": "eagle3", "draft_tokens": 2, "draft_weights": "acme/head"},
            {
                "algorithm": "EAGLE3", "draft-model-path": "acme/head", "num-steps": "2", "eagle-topk": "1",
                "num-draft-tokens": "3",
            },
        ),
    ],
)  # fmt: skip
def test_drafted_tokens_of_sglang(launch: Any, speculation: dict[str, Any] | None, flags: dict[str, str]) -> None:
    written = {
        flag.removeprefix("--speculative-"): values[0]
        for flag, *values in engine_flags(launch(engine={"name": "sglang", "speculation": speculation}))
        if flag.startswith("--speculative-")
    }
    assert written == flags


@pytest.mark.parametrize(
    ("speculation", "section"),
    [
        (None, None),
        ({"method": "mtp", "draft_tokens": 3}, {"decoding_type": "MTP", "num_nextn_predict_layers": 3}),
        (
            {"method": "eagle3", "draft_tokens": 2, "draft_weights": "acme/head"},
            {"decoding_type": "Eagle", "max_draft_len": 2, "speculative_model_dir": "acme/head"},
        ),
        (
            {"method": "ngram", "draft_tokens": 4},
            {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 2},
        ),
    ],
)
def test_drafted_tokens_of_trtllm(
    launch: Any, speculation: dict[str, Any] | None, section: dict[str, Any] | None
) -> None:
    options = llm_api_options(launch(engine={"name": "trtllm", "speculation": speculation}))
    assert options.get("speculative_config") == section
    by_ngram = speculation is not None and speculation["method"] == "ngram"
    assert options["disable_overlap_scheduler"] is by_ngram


def test_n_grams_overlap_under_sglang_alone(launch: Any) -> None:
    drafting = launch(engine={"name": "sglang", "speculation": {"method": "ngram", "draft_tokens": 1}})
    other, notes = other_engine(drafting.pool.engine)
    assert not other.overlap
    assert "vLLM has no asynchronous scheduling with n-gram drafts; simulated with overlap." in notes
    assert other_engine(other)[0].overlap


def test_sglang_settings(launch: Any) -> None:
    flags = dict(
        flag if len(flag) == 2 else (flag[0], "")
        for flag in engine_flags(
            launch(
                engine={
                    "name": "sglang",
                    "chunk_tokens": 4096,
                    "max_running_requests": 96,
                    "eviction": "lfu",
                    "memory_fraction": 0.88,
                    "schedule_conservativeness": 0.5,
                },
                pool={"tiers": [{"medium": "ddr5", "gib": 256}], "tensor_parallel": 4, "kv_dtype": "fp8"},
            )
        )
    )
    assert flags == {
        "--tp-size": "4",
        "--dtype": "bfloat16",
        "--kv-cache-dtype": "fp8_e4m3",
        "--mem-fraction-static": "0.88",
        "--max-total-tokens": "400000",
        "--page-size": "1",
        "--chunked-prefill-size": "4096",
        "--max-prefill-tokens": "16384",
        "--max-running-requests": "96",
        "--schedule-policy": "fcfs",
        "--schedule-conservativeness": "0.5",
        "--radix-eviction-policy": "lfu",
        "--enable-hierarchical-cache": "",
        "--hicache-size": "68",  # 256 GiB = 274.9 GB, over 4 ranks
        "--hicache-write-policy": "write_through",
    }


def test_sglang_s_window_pool_goes_with_models_that_have_one(launch: Any) -> None:
    windows = {"sliding_window_tokens": 128}
    for model, flag in (({"attention_sinks": True} | windows, "0.2"), (windows, None), ({}, None)):
        engine = {"name": "sglang", "swa_full_tokens_ratio": 0.2}
        flags = dict(flag for flag in engine_flags(launch(engine=engine, model=model)) if len(flag) == 2)
        assert flags.get("--swa-full-tokens-ratio") == flag


def test_vllm_settings(launch: Any) -> None:
    flags = engine_flags(launch(engine={"name": "vllm", "prefix_caching": False}, pool={"weight_dtype": "fp8"}))
    assert ("--quantization", "fp8_per_tensor") in flags
    assert ("--disable-prefix-caching",) in flags
    assert ("--enable-prefix-caching",) not in flags
    assert ("--block-size", "16") in flags
    assert ("--num-gpu-blocks-override", "25000") in flags
    assert ("--max-num-batched-tokens", "8192") in flags


def test_vllm_enlarges_blocks_of_other_heads_by_itself(launch: Any) -> None:
    """The stated block is the smaller; a page of 32 tokens has one of full attention and two of windows."""
    windows = {
        "sliding_window_tokens": 1024,
        "window_heads": {"attention_heads": 64, "kv_heads": 16, "head_dim": 128},
    }
    flags = engine_flags(launch(engine={"name": "vllm"}, model=windows))
    assert ("--block-size", "16") in flags
    assert ("--num-gpu-blocks-override", "12500") in flags
    assert dict(flag for flag in flags if len(flag) == 2)["--max-model-len"].isdigit()


LINEAR = {"layers": 3, "key_heads": 16, "value_heads": 32, "key_head_dim": 128, "value_head_dim": 128}


@pytest.mark.parametrize(
    ("changes", "role"), [({"linear_attention": LINEAR}, "prefill"), ({"sliding_window_tokens": 4096}, "prefill")]
)
def test_blocks_that_are_not_tokens_of_every_layer_are_left_to_vllm(
    build_deployment: Any, build_model: Any, build_accelerator: Any, changes: dict[str, Any], role: str
) -> None:
    pool = build_deployment(engine={"name": "vllm"}).pool.model_copy(update={"role": role})
    launch = Launch(pool, build_model(**changes), build_accelerator(), 400_000)
    assert "--num-gpu-blocks-override" not in {flag for flag, *_ in engine_flags(launch)}


def test_blocks_of_states_and_the_longest_request_that_they_hold(
    build_deployment: Any, build_model: Any, build_accelerator: Any
) -> None:
    """A block has as many tokens as a state takes; each of three groups of states has two blocks of a request."""
    pool = build_deployment(engine={"name": "vllm"}).pool
    model = build_model(
        layers=4, kv_heads=2, head_dim=256, linear_attention=LINEAR, max_context_tokens=10_000_000, attention_heads=8
    )
    launch = Launch(pool, model, build_accelerator(), 1056 * 1000)
    flags = {flag: values for flag, *values in engine_flags(launch)}
    assert flags["--block-size"] == ["1056"]
    assert flags["--num-gpu-blocks-override"] == ["1000"]
    assert flags["--max-model-len"] == [str((1000 - 1 - 3 * 2) * 1056)]


def test_blocks_of_groups_and_the_longest_request_that_they_hold(
    build_deployment: Any, build_model: Any, build_accelerator: Any
) -> None:
    """Half of the layers have a window of 64 tokens: 1,000 blocks, one of them vLLM's own."""
    pool = build_deployment(engine={"name": "vllm", "chunk_tokens": 512, "max_running_requests": 64}).pool
    model = build_model(sliding_window_tokens=64, max_context_tokens=1_000_000)
    flags = {flag: values for flag, *values in engine_flags(Launch(pool, model, build_accelerator(), 16_000))}
    assert flags["--num-gpu-blocks-override"] == ["1000"]
    # 63 tokens of the window, 1,024 of two steps in flight: 68 pages and one more; the other 930 are full attention's.
    assert flags["--max-model-len"] == [str(930 * 16)]


def test_schedulers_are_exported(launch: Any) -> None:
    sglang = engine_flags(
        launch(engine={"schedule": "lpm", "overlap": False, "mixed_chunk": True, "chunked_prefill": False})
    )
    assert {("--schedule-policy", "lpm"), ("--chunked-prefill-size", "-1")} <= set(sglang)
    assert {("--disable-overlap-schedule",), ("--enable-mixed-chunk",)} <= set(sglang)
    urgent = engine_flags(launch(engine={"schedule": "priority"}))
    assert {("--enable-priority-scheduling",), ("--schedule-low-priority-values-first",)} <= set(urgent)
    settings = {"overlap": False, "schedule": "priority", "long_prefill_tokens": 512, "reserve_full_prompt": False}
    vllm = engine_flags(launch(engine={"name": "vllm", "chunked_prefill": False, **settings}))
    assert {("--scheduling-policy", "priority"), ("--long-prefill-token-threshold", "512")} <= set(vllm)
    switches = {("--no-async-scheduling",), ("--disable-chunked-prefill",), ("--no-scheduler-reserve-full-isl",)}
    assert switches <= set(vllm)
    assert ("--watermark", "0.1") in engine_flags(launch(engine={"name": "vllm", "watermark": 0.1}))


def test_what_the_other_engine_lacks_is_named(build_deployment: Any) -> None:
    engine = build_deployment(engine={"schedule": "lpm", "mixed_chunk": True}).pool.engine
    other, notes = other_engine(engine)
    assert (other.schedule, other.mixed_chunk) == ("fcfs", False)
    assert any("lpm" in note for note in notes)
    assert any("mixed_chunk" in note for note in notes)


def test_trtllm_settings(launch: Any) -> None:
    built = launch(
        engine={
            "name": "trtllm",
            "chunk_tokens": 4096,
            "max_running_requests": 96,
            "memory_fraction": 0.85,
            "capacity_policy": "max_utilization",
        },
        pool={"tiers": [{"medium": "ddr5", "gib": 256}], "tensor_parallel": 4, "kv_dtype": "fp8"},
    )
    assert dict(engine_flags(built)) == {
        "--backend": "pytorch",
        "--tp_size": "4",
        "--max_batch_size": "96",
        "--max_num_tokens": "4096",
        "--max_seq_len": "40960",
    }
    assert yaml.safe_load(server_options_text(built)) == {
        "dtype": "bfloat16",
        "enable_chunked_prefill": True,
        "disable_overlap_scheduler": False,
        "scheduler_config": {
            "capacity_scheduler_policy": "MAX_UTILIZATION",
            "context_chunking_policy": "FIRST_COME_FIRST_SERVED",
        },
        "kv_cache_config": {
            "free_gpu_memory_fraction": 0.85,
            "max_tokens": 400_000,
            "enable_block_reuse": True,
            "enable_partial_reuse": False,
            "tokens_per_block": 32,
            "dtype": "fp8",
            "host_cache_size": 64 * 2**30,  # of each of 4 ranks
        },
    }


def test_what_makes_trtllm_hold_contexts_back(launch: Any) -> None:
    waits = {"batch_wait_timeout_ms": 7.5, "batch_wait_timeout_iters": 3, "batch_wait_max_tokens_ratio": 0.5}
    balance = {"attention_dp_balance": True, "attention_dp_timeout_iters": 7, "attention_dp_batching_wait_iters": 2}
    alone = yaml.safe_load(server_options_text(launch(engine={"name": "trtllm", **waits, **balance})))
    assert {key: alone[key] for key in waits} == waits
    assert "attention_dp_config" not in alone
    groups = launch(engine={"name": "trtllm", **balance}, pool={"attention_data_parallel": 4, "tensor_parallel": 1})
    assert yaml.safe_load(server_options_text(groups))["attention_dp_config"] == {
        "enable_balance": True,
        "timeout_iters": 7,
        "batching_wait_iters": 2,
    }


def test_trtllms_queue_by_priority(launch: Any) -> None:
    by_priority = yaml.safe_load(server_options_text(launch(engine={"name": "trtllm", "schedule": "priority"})))
    assert by_priority["scheduler_config"]["waiting_queue_policy"] == "priority"
    by_arrival = yaml.safe_load(server_options_text(launch(engine={"name": "trtllm"})))
    assert "waiting_queue_policy" not in by_arrival["scheduler_config"]


def test_trtllms_graphs(launch: Any) -> None:
    engine = {"name": "trtllm", "cudagraph_mode": "full_and_piecewise", "max_cudagraph_capture_size": 64}
    options = yaml.safe_load(server_options_text(launch(engine=engine)))
    assert options["cuda_graph_config"] == {"max_batch_size": 64}
    assert options["torch_compile_config"] == {"enable_piecewise_cuda_graph": True}
    decodes = yaml.safe_load(server_options_text(launch(engine={**engine, "cudagraph_mode": "full_decode_only"})))
    assert "torch_compile_config" not in decodes


def test_trtllm_serves_the_formats_of_its_checkpoint(launch: Any) -> None:
    needed = needs_checkpoint(launch(engine={"name": "trtllm"}, pool={"weight_dtype": "fp8"}))
    assert needed is not None
    assert needed.dtype == "fp8"
    assert needs_checkpoint(launch(engine={"name": "trtllm"})) is None


def test_trtllm_is_translated_to_vllm(build_deployment: Any) -> None:
    engine = build_deployment(engine={"name": "trtllm", "capacity_policy": "max_utilization"}).pool.engine
    other, notes = other_engine(engine)
    assert (other.name, other.page_size, other.capacity_policy) == ("vllm", 16, "guaranteed_no_evict")
    assert notes == ("KV pages of 16 tokens; simulated with 32.",)
    _, notes = other_engine(engine.model_copy(update={"capacity_policy": "guaranteed_no_evict"}))
    assert len(notes) == 2


def test_host_tier_is_left_out_without_a_prefix_cache(launch: Any) -> None:
    flags = engine_flags(launch(engine={"prefix_caching": False}, pool={"tiers": [{"medium": "ddr5", "gib": 64}]}))
    assert ("--disable-radix-cache",) in flags
    assert ("--enable-hierarchical-cache",) not in flags


def test_fp8_kv_without_fp8_arithmetic_is_e5m2(launch: Any) -> None:
    assert ("--kv-cache-dtype", "fp8_e5m2") in engine_flags(launch(fp8=False, pool={"kv_dtype": "fp8"}))


@pytest.mark.parametrize(
    ("engine", "dtype"), [("sglang", "int8"), ("vllm", "fp4"), ("vllm", "int4"), ("trtllm", "fp4")]
)
def test_unknown_kv_format_is_refused(launch: Any, engine: str, dtype: str) -> None:
    with pytest.raises(ValueError, match=f"{engine} has no KV cache format {dtype}; known: bf16"):
        launch(engine={"name": engine}, pool={"kv_dtype": dtype})


@pytest.mark.parametrize(
    ("stored", "served", "checkpoint"),
    [
        ("bf16", None, None),
        ("bf16", "fp8", None),
        ("fp8", "fp8", None),
        ("bf16", "int4", "int4"),
        ("fp8", "bf16", "bf16"),
    ],
)
def test_which_formats_need_other_weights(launch: Any, stored: str, served: str | None, checkpoint: str | None) -> None:
    built = launch(model={"weight_dtype": stored}, pool={"weight_dtype": served})
    needed = needs_checkpoint(built)
    assert (None if needed is None else needed.dtype) == checkpoint


def test_sglang_quantises_only_what_it_can_load_in_full(launch: Any) -> None:
    # 61.0 GiB of bf16 weights: 80 GB hold them, 48 GB only as halves.
    small = launch(pool={"weight_dtype": "fp8", "tensor_parallel": 1})
    small = small._replace(accelerator=small.accelerator.model_copy(update={"memory_bytes": 48e9}))
    needed = needs_checkpoint(small)
    assert needed is not None
    assert needed.dtype == "fp8"
    assert "loads bf16 weights in full before it quantises them to fp8: 61.0 GiB on each rank" in needed.reason
    assert ("--quantization", "fp8") not in engine_flags(small)
    halves = small._replace(pool=small.pool.model_copy(update={"tensor_parallel": 2}))
    assert needs_checkpoint(halves) is None
    assert ("--quantization", "fp8") in engine_flags(halves)
    assert needs_checkpoint(launch(pool={"weight_dtype": "fp8", "tensor_parallel": 1})) is None
    # vLLM quantises layer by layer.
    vllm = launch(engine={"name": "vllm"}, pool={"weight_dtype": "fp8", "tensor_parallel": 1})
    vllm = vllm._replace(accelerator=small.accelerator)
    assert needs_checkpoint(vllm) is None
    assert ("--quantization", "fp8_per_tensor") in engine_flags(vllm)


def test_the_other_engine_is_valid_and_says_what_changed(build_deployment: Any) -> None:
    engine = build_deployment(engine={"eviction": "lfu", "chunk_tokens": 128, "max_running_requests": 256}).pool.engine
    other, notes = other_engine(engine)
    assert (other.name, other.eviction, other.chunk_tokens, other.page_size) == ("vllm", "lru", 256, 16)
    assert len(notes) == 4
    back, _ = other_engine(other)
    assert (back.name, back.page_size, back.chunk_tokens) == ("sglang", 16, 256)


def test_placement_gives_disjoint_devices_and_distinct_ports(launch: Any) -> None:
    placements = place([launch(pool={"replicas": 7, "tensor_parallel": 2})], [5], [None])
    assert len({p.port for p in placements}) == 7
    assert [p.host for p in placements] == [0, 0, 1, 1, 2, 2, 3]
    used = [(p.host, device) for p in placements for device in p.devices]
    assert len(set(used)) == len(used) == 14
    assert max(device for _, device in used) < 5


def test_a_replica_wider_than_a_host_is_refused(launch: Any) -> None:
    with pytest.raises(ExportError, match="tensor_parallel 8 does not fit a host with 4"):
        place([launch(pool={"tensor_parallel": 8})], [4], [None])
