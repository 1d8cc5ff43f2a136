"""The scheduler of the installed vLLM, 0.19 to 0.33, with a recording's settings: no weights, no GPU, no download.

A stub model of one layer gives the configuration. Versions are told apart by what they offer.
"""

from __future__ import annotations

import inspect
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hisearch.record import vllm_adapters, vllm_drafts, vllm_lmcache, vllm_offload
from hisearch.record.adapters import checked_lora
from hisearch.record.cases import CaseError, EngineError, Setting

VERSIONS = ((0, 19), (0, 33))
#: vLLM's own names -> how a recording names them.
_INTEGER, _FLAG = ((int,), "an integer"), ((bool,), "true or false")
SETTINGS = {
    "max_num_seqs": Setting("max_num_seqs", *_INTEGER, required=True, least=1),
    "max_num_batched_tokens": Setting("max_tokens", *_INTEGER, required=True, least=1),
    "num_gpu_blocks_override": Setting("num_blocks", (int,), "an integer, 2 or more", required=True, least=2),
    "block_size": Setting("block_size", *_INTEGER, required=True, least=1),
    "decode_context_parallel_size": Setting("decode_context_parallel_size", *_INTEGER, default=1, least=1),
    "prefill_context_parallel_size": Setting("prefill_context_parallel_size", *_INTEGER, default=1, least=1),
    "enable_prefix_caching": Setting("prefix", *_FLAG, default=True),
    "enable_chunked_prefill": Setting("chunked_prefill", *_FLAG, default=True),
    "policy": Setting("policy", (str,), "fcfs or priority", default="fcfs", choices=("fcfs", "priority")),
    "long_prefill_token_threshold": Setting("long_prefill_token_threshold", *_INTEGER, default=0),
    "long_prefill_token_threshold_adaptive": Setting("long_prefill_token_threshold_adaptive", *_FLAG, default=False),
    "scheduler_reserve_full_isl": Setting("scheduler_reserve_full_isl", *_FLAG, default=True),
    "async_scheduling": Setting("async_scheduling", *_FLAG, default=False),
    "max_model_len": Setting("max_model_len", *_INTEGER, default=65536, least=2),
    "watermark": Setting("watermark", (float, int), "a number from 0 to 1", default=0.0),
    "sliding_window": Setting("sliding_window", *_INTEGER, default=0),
    "hybrid_window": Setting("hybrid_window", *_INTEGER, default=0),
    "mamba_groups": Setting("mamba_groups", *_INTEGER, default=0),
    "mamba_prefill_checkpoints": Setting("mamba_prefill_checkpoints", *_FLAG, default=False),
    "prefix_cache_retention_interval": Setting(
        "prefix_cache_retention_interval", (int, type(None)), "an integer or null", default=None
    ),
    "offload": Setting("offload", (dict,), "a mapping", default={}),
    "speculation": Setting("speculation", (dict,), "a mapping", default={}),
    "lora": Setting("lora", (dict,), "a mapping", default={}),
    "structured": Setting("structured", (dict,), "a mapping", default={}),
}
#: Settings under the same name in a recording and as an argument of vLLM's ``SchedulerConfig``.
_SCHEDULER_KEYS = (
    "policy", "long_prefill_token_threshold", "scheduler_reserve_full_isl", "async_scheduling", "watermark",
    "long_prefill_token_threshold_adaptive",
)  # fmt: skip
BLOCK_KEY = "block_size"
_MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "torch_dtype": "float16",
    "hidden_size": 64, "intermediate_size": 64, "head_dim": 64, "num_attention_heads": 1, "num_key_value_heads": 1,
    "num_hidden_layers": 1, "max_position_embeddings": 2**24,
}  # fmt: skip


@cache
def version() -> str:
    """The installed vLLM's version.

    Raises:
        EngineError: not installed, or not one that this module knows.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import vllm
    except ImportError as error:
        raise EngineError(
            f"vLLM cannot be imported ({error}): run this with the Python of an environment that has vLLM"
        ) from None
    text = str(vllm.__version__)
    release = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if not VERSIONS[0] <= release <= VERSIONS[1]:
        first, last = (".".join(map(str, ends)) for ends in VERSIONS)
        raise EngineError(f"vLLM {text} is installed; expected a version from {first} to {last}")
    return text


def is_lmcache(settings: dict[str, Any]) -> bool:
    """Whether a case's connector is LMCache's."""
    return bool(settings.get("offload", {}).get("connector") == "lmcache")


def has_retention() -> bool:
    """Whether the installed release lets sliding windows keep blocks at intervals."""
    from vllm.v1.kv_cache_interface import KVCacheConfig

    return "prefix_cache_retention_interval" in inspect.signature(KVCacheConfig).parameters


def exports_checkpoints() -> bool:
    """Whether the installed release keeps states from within a prefill, where a backend exports them."""
    from vllm.v1.kv_cache_interface import MambaSpec

    return "num_prefill_checkpoint_blocks" in inspect.signature(MambaSpec).parameters


def make_scheduler(settings: dict[str, Any]) -> tuple[Any, Any]:
    """The engine's scheduler with these settings, and its function that names the blocks of a request.

    Args:
        settings: by their names in a recording.
    """
    from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.structured_output import StructuredOutputManager

    prefix, max_model_len = settings.get("prefix", True), settings.get("max_model_len", 65536)
    arguments: dict[str, Any] = {
        "max_num_seqs": settings["max_num_seqs"], "max_num_batched_tokens": settings["max_tokens"],
        "enable_chunked_prefill": settings.get("chunked_prefill", True), "max_model_len": max_model_len,
        "is_encoder_decoder": False, "async_scheduling": False,
    }  # fmt: skip
    arguments |= {key: settings[key] for key in _SCHEDULER_KEYS if key in settings}
    known = inspect.signature(SchedulerConfig).parameters
    for key in set(arguments) - set(known):
        if arguments.pop(key) != SETTINGS[key].default:
            raise CaseError(f"{key}: vLLM {version()} has no such setting; leave it out of the case")
    model = _model()
    model.max_model_len = max_model_len
    cache_config, more = _kv_cache_config(settings), {}
    if settings.get("offload"):
        page_bytes = cache_config.kv_cache_groups[0].kv_cache_spec.page_size_bytes
        if is_lmcache(settings):
            offload = vllm_lmcache.checked(settings["offload"], settings["block_size"])
            more = vllm_lmcache.connector_config(offload, page_bytes, settings["block_size"], version())
        else:
            offload = vllm_offload.checked(settings["offload"])
            more = vllm_offload.connector_config(offload, settings["block_size"], page_bytes)
    config = VllmConfig(
        model_config=model, scheduler_config=SchedulerConfig(**arguments), device_config=DeviceConfig(device="cpu"),
        cache_config=CacheConfig(block_size=settings["block_size"], enable_prefix_caching=prefix), **more,
    )  # fmt: skip
    if settings.get("speculation"):
        config.speculative_config = vllm_drafts.speculative_config(settings["speculation"], config)
    if settings.get("lora"):
        config.lora_config = vllm_adapters.lora_config(checked_lora("vllm", settings["lora"]))
    config.cache_config.num_gpu_blocks = settings["num_blocks"]
    # There is one rank: only the scheduler's counting of blocks is asked for.
    ranks = config.parallel_config.decode_context_parallel_size = settings.get("decode_context_parallel_size", 1)
    prompts = settings.get("prefill_context_parallel_size", 1)
    if prompts > 1 and not hasattr(config.parallel_config, "pcp_shard_decode_requests"):
        raise CaseError(f"prefill_context_parallel_size: vLLM {version()} does not run with it; leave it out")
    config.parallel_config.prefill_context_parallel_size = prompts
    if settings.get("mamba_groups"):
        config.cache_config.mamba_cache_mode = _mamba_cache_mode(settings)
    sizes = {"block_size": settings["block_size"]}
    if hasattr(kv_cache_utils, "resolve_kv_cache_block_sizes"):
        sizes["block_size"], sizes["hash_block_size"] = kv_cache_utils.resolve_kv_cache_block_sizes(
            cache_config, config
        )
    else:
        sizes["block_size"] *= ranks
    hashing = _hash_function(config.cache_config.prefix_caching_hash_algo)
    kv_cache_utils.init_none_hash(hashing)
    block_tokens = sizes.get("hash_block_size", sizes["block_size"])
    ahead = getattr(config, "num_hash_lookahead_tokens", 0)
    hashed = (block_tokens, hashing, ahead) if ahead else (block_tokens, hashing)
    hasher = kv_cache_utils.get_request_block_hasher(*hashed) if prefix or more else None
    scheduler_class = config.scheduler_config.get_scheduler_cls()
    scheduler = scheduler_class(
        vllm_config=config, kv_cache_config=cache_config, log_stats=False,
        structured_output_manager=StructuredOutputManager(config), **sizes,
    )  # fmt: skip
    return scheduler, hasher


def _kv_cache_config(settings: dict[str, Any]) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheTensor,
        SlidingWindowSpec,
    )

    shape = {"block_size": settings["block_size"], "num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
    specs: list[Any] = []
    if not settings.get("sliding_window"):
        specs.append(FullAttentionSpec(**shape))
    window = settings.get("sliding_window") or settings.get("hybrid_window")
    if window:
        specs.append(SlidingWindowSpec(sliding_window=window, **shape))
    specs += [_mamba_spec(settings, specs[0].page_size_bytes)] * settings.get("mamba_groups", 0)
    groups = [KVCacheGroupSpec([f"layer{index}"], spec) for index, spec in enumerate(specs)]
    tensors = []
    if settings.get("offload") and not is_lmcache(settings) and not vllm_offload.has_new_worker():
        # The host's blocks are counted from the tensors' pages.
        size = settings["num_blocks"] * specs[0].page_size_bytes
        tensors.append(KVCacheTensor(size=size, shared_by=groups[0].layer_names))
    more: dict[str, Any] = {}
    if (interval := settings.get("prefix_cache_retention_interval")) is not None:
        if not has_retention():
            raise CaseError(f"prefix_cache_retention_interval: vLLM {version()} has no such setting")
        more["prefix_cache_retention_interval"] = interval
    return KVCacheConfig(num_blocks=settings["num_blocks"], kv_cache_tensors=tensors, kv_cache_groups=groups, **more)


def _mamba_cache_mode(settings: dict[str, Any]) -> str:
    """The mode of models with linear attention: with prefix caching they keep states at block boundaries."""
    return "align" if settings.get("prefix", True) else "none"


def _mamba_spec(settings: dict[str, Any], page_bytes: int) -> Any:
    """A group of states whose blocks take ``page_bytes`` bytes."""
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec

    mode, size, more = _mamba_cache_mode(settings), settings["block_size"], {}
    if settings.get("mamba_prefill_checkpoints"):
        if not exports_checkpoints():
            raise CaseError(f"mamba_prefill_checkpoints: vLLM {version()} has no such setting; leave it out")
        more = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": size}
    return MambaSpec(
        block_size=size if mode == "align" else settings.get("max_model_len", 65536), shapes=((1,),),
        dtypes=(torch.float16,), page_size_padded=page_bytes, mamba_cache_mode=mode, **more,
    )  # fmt: skip


def _hash_function(name: str) -> Any:
    from vllm.utils.hashing import get_hash_fn_by_name

    return get_hash_fn_by_name(name)


@cache
def _model() -> Any:
    from vllm.config import ModelConfig

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
        return ModelConfig(
            model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="float16", max_model_len=65536
        )
