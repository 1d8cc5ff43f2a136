"""Which release of an engine is exported, and how its command line changed from release to release, as data.

A change is named and dated by the first release known to have it. Tables of flags ask for it by name
(``is_changed``). Flags of the releases in ``READ`` were read out of their argument parsers
(docs/generate_engine_flags.py); releases between them have the flags of the one before, and the changes dated up to
them.
"""

from __future__ import annotations

from collections.abc import Iterable

from hisearch.base.rule import Rule
from hisearch.export.engines.launch import Launch
from hisearch.specs.base import ENGINE_TITLES, EngineName
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.engine_rules import rules_version
from hisearch.specs.versions import precedes

#: Releases whose argument parsers were read, oldest first.
READ: dict[EngineName, tuple[str, ...]] = {
    "sglang": ("0.5.9", "0.5.23"),
    "vllm": ("0.19.1", "0.33.0"),
    "trtllm": ("1.1.0",),
}


#: What a command line says otherwise since a release.
CHANGES: dict[EngineName, tuple[Rule, ...]] = {
    "vllm": (
        Rule(
            "knows_offloading_connector",
            "0.22.0",
            "`--disable-hybrid-kv-cache-manager` with `--kv-offloading-backend`, whose connectors do not support it; "
            "`--no-disable-hybrid-kv-cache-manager` with NIXL where the model has windows or linear attention.",
            "Nothing: the engine decides by its connectors.",
            "config.vllm.VllmConfig.__post_init__",
        ),
        Rule(
            "lmcache_is_a_server",
            "0.23.0",
            "`--kv-offloading-backend lmcache` for a worker's own LMCache.",
            "`--kv-transfer-config` with LMCacheConnectorV1: the flag now means a server.",
            "config.vllm.VllmConfig._post_init_kv_transfer_config",
        ),
        Rule(
            "has_watermark",
            "0.24.0",
            "`engine.watermark` is refused.",
            "`--watermark`.",
            "config.scheduler.SchedulerConfig",
        ),
        Rule(
            "names_online_formats",
            "0.33.0",
            "`--quantization fp8`.",
            "`--quantization fp8_per_tensor`: fp8 is deprecated for weights that are quantized while loading.",
            "model_executor.model_loader.weight_utils",
        ),
        Rule(
            "has_opposites",
            "0.33.0",
            "`--no-enable-prefix-caching`, `--no-enable-chunked-prefill`.",
            "`--disable-prefix-caching`, `--disable-chunked-prefill`.",
            "utils.argparse_utils.EnableDisableAction",
        ),
    ),
    "sglang": (
        Rule(
            "finds_decode_ranks",
            "0.5.10",
            "`--disaggregation-decode-tp` for prefill workers with other ranks than decode workers.",
            "Nothing: the flag is gone.",
            "srt.server_args.ServerArgs",
        ),
        Rule(
            "names_fusion_backend",
            "0.5.14",
            "`--enable-flashinfer-allreduce-fusion`.",
            "`--flashinfer-allreduce-fusion-backend auto`.",
            "srt.server_args.ServerArgs",
        ),
        Rule(
            "starts_with_small_host_pool",
            "0.5.15",
            "The host pool of HiCache has to exceed the device pool, which the README says where it does not.",
            "Nothing: the engine warns, and starts.",
            "srt.mem_cache.pool_host.base.HostKVCache",
        ),
        Rule(
            "names_fp4_recipes",
            "0.5.16",
            "`--kv-cache-dtype fp4_e2m1`.",
            "`--kv-cache-dtype fp4_mx_block16`, the same format.",
            "srt.server_args.ServerArgs",
        ),
        Rule(
            "lmcache_is_a_server",
            "0.5.21",
            "`--enable-lmcache` for a worker's own LMCache.",
            "LMCache is refused: it became a server, which is not exported for SGLang.",
            "srt.mem_cache.registry",
        ),
        Rule(
            "has_attention_groups",
            "0.5.22",
            "`--dp-size N --enable-dp-attention`.",
            "`--attn-dp-size N`.",
            "srt.server_args.ServerArgs",
        ),
        Rule(
            "names_graphs_by_phase",
            "0.5.23",
            "`--disable-cuda-graph`, `--cuda-graph-bs`, `--cuda-graph-max-bs`.",
            "`--disable-decode-cuda-graph --disable-prefill-cuda-graph`, `--cuda-graph-bs-decode`, "
            "`--cuda-graph-max-bs-decode`.",
            "srt.server_args.ServerArgs",
        ),
        Rule(
            "moved_bench_serving",
            "0.5.23",
            "`python -m sglang.bench_serving`.",
            "`python -m sglang.benchmark.serving`.",
            "bench_serving",
        ),
    ),
    "trtllm": (),
}

#: Eviction policies of SGLang's command line (RADIX_EVICTION_POLICY_CHOICES) -> first release that takes them.
SGLANG_EVICTIONS = {"lru": "0.5.9", "lfu": "0.5.9", "slru": "0.5.10", "priority": "0.5.11"}


def exported_release(engine: EngineSpec) -> str:
    """The release whose flags are written, and which images and packages are pinned to.

    The one that ``engine.version`` names; the oldest or newest whose rules are known where it is older or newer, a
    nightly build or absent.
    """
    return rules_version(engine.name, engine.version).partition("+")[0]


def is_changed(engine: EngineSpec, name: str) -> bool:
    """Whether the change ``name`` holds in the exported release."""
    return any(
        change.name == name and not precedes(exported_release(engine), change.since) for change in CHANGES[engine.name]
    )


def release_notice(launches: Iterable[Launch]) -> str:
    """A notice where files run another release than the deployment names, or one whose flags were not read; or ""."""
    for launch in launches:
        engine = launch.pool.engine
        title, exported, read = ENGINE_TITLES[engine.name], exported_release(engine), READ[engine.name]
        named = engine.version.partition("+")[0]
        if exported in read and named in ("", exported):
            continue
        if named not in ("", exported):
            return (
                f"The deployment names {title} {named}. These files run {title} {exported}, the nearest release whose "
                "flags are known here, by whose rules it was simulated as well."
            )
        before = next(release for release in reversed(read) if precedes(release, exported))
        return (
            f"The flags of {title} {exported} were not read. These are those of {before}, with what is known to have "
            "changed since: compare them with the engine's --help."
        )
    return ""


def says(launch: Launch, name: str) -> bool:
    """Whether a change of command lines holds in the launch's release."""
    return is_changed(launch.pool.engine, name)


def release_title(launch: Launch) -> str:
    """``vllm 0.33.0``, for messages."""
    return f"{launch.pool.engine.name} {exported_release(launch.pool.engine)}"
