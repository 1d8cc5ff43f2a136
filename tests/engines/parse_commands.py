"""Push command lines through an engine's own argument parser: run with the Python that has the engine.

Reads {name: {"words": words, "model": kind}} as JSON from standard input, the words without program and model. Writes
{name: {"error": error, "unchecked": reason}}, both "" where it is taken and all was checked; with ``--flags`` it
writes what the parser has instead.

No GPU: vLLM is told that it runs on one, makes its whole configuration for a model of that kind (``MODELS``), and its
connectors' classes are asked whether they support it. SGLang's kernels are replaced by stand-ins.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

#: Parser, and what makes the engine's own arguments of what it returns; its text says what could not be checked.
Parser = tuple[argparse.ArgumentParser, Callable[[Any, str], str]]


#: Fields of what vLLM's registry says of a model; all others are False.
_MODEL_INFO = {
    "is_text_generation_model": True, "supports_pp": True, "supports_lora": True, "attn_type": "decoder",
    "default_seq_pooling_type": "LAST", "default_tok_pooling_type": "ALL", "score_type": "bi-encoder",
    "supported_video_pruning_methods": (),
}  # fmt: skip
_SHAPE = {
    "hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 64,
    "intermediate_size": 25600, "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536}
_ALTERNATING = [("sliding_attention", "full_attention")[layer % 2] for layer in range(64)]
_LATENT = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "num_key_value_heads": 64,
}  # fmt: skip
#: Kind of model -> its architecture, and its ``config.json`` where it differs from ``_SHAPE``.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("Qwen3ForCausalLM", {"model_type": "qwen3"}),
    "experts": ("Qwen3MoeForCausalLM", {"model_type": "qwen3_moe", **_EXPERTS}),
    "windows": (
        "GptOssForCausalLM", {"model_type": "gpt_oss", "sliding_window": 128, "layer_types": _ALTERNATING},
    ),
    "linear": ("Qwen3NextForCausalLM", {"model_type": "qwen3_next", **_EXPERTS}),
    "mla": ("DeepseekV3ForCausalLM", {"model_type": "deepseek_v3", **_LATENT}),
    "mtp": (
        "Glm4MoeForCausalLM",
        {"model_type": "glm4_moe", "n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536,
         "num_nextn_predict_layers": 1},
    ),
    "head": ("LlamaForCausalLMEagle3", {"model_type": "llama", "num_hidden_layers": 1, "draft_vocab_size": 32000}),
}  # fmt: skip
#: Kinds that are not what was simulated, or do not start, where vLLM turns its hybrid KV cache manager off.
_OF_SEVERAL_ATTENTIONS = ("windows", "linear")


def vllm_parser() -> Parser:
    """``vllm serve``: the parser, and the engine's whole configuration, as far as a machine without GPU can make it."""
    # With Triton, which needs a GPU, later releases take the second model runner by themselves.
    os.environ |= {"HF_HUB_OFFLINE": "1"} | ({} if version("vllm") == "0.19.1" else {"VLLM_USE_V2_MODEL_RUNNER": "1"})
    from vllm import platforms  # type: ignore[import-not-found]
    from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum  # type: ignore[import-not-found]

    names: dict[str, Any] = {
        "_enum": PlatformEnum.CUDA, "device_name": "cuda", "device_type": "cuda", "dispatch_key": "CUDA",
        "ray_device_key": "GPU", "device_control_env_var": "CUDA_VISIBLE_DEVICES",
    }  # fmt: skip
    answers = {
        "get_device_capability": DeviceCapability(9, 0), "get_device_total_memory": 80 * 2**30, "device_count": 8,
        "get_device_name": "GPU", "check_and_update_config": None, "support_hybrid_kv_cache": True,
        "is_async_output_supported": True, "supports_fp8": True,
    }  # fmt: skip
    names |= {name: staticmethod(lambda *_, _answer=answer, **__: _answer) for name, answer in answers.items()}
    platforms._current_platform = type("NamedGpu", (Platform,), names)()
    kernels: Any = types.ModuleType("vllm.vllm_flash_attn")  # Kernels that connectors import and nothing here calls.
    kernels.__getattr__ = lambda _: None
    sys.modules[kernels.__name__] = kernels
    from vllm import _custom_ops as operators  # type: ignore[import-not-found]

    for name in vars(operators):
        if "_supports_" in name:  # Questions to kernels about the accelerator.
            setattr(operators, name, lambda *_: True)
    from vllm.triton_utils import triton  # type: ignore[import-not-found]

    # Without Triton, vLLM's stand-in for it makes functions of configurations, whose fields modules read.
    triton.Config = lambda kwargs, **fields: types.SimpleNamespace(kwargs=kwargs, **fields)
    import vllm.utils.torch_utils as counted  # type: ignore[import-not-found]

    counted.cuda_device_count_stateless = lambda: 8
    from vllm.model_executor.models import registry  # type: ignore[import-not-found]

    def inspect(_: Any, architectures: Any, __: Any) -> tuple[Any, str]:
        name = architectures if isinstance(architectures, str) else architectures[0]
        fields = {field.name: _MODEL_INFO.get(field.name, False) for field in dataclasses.fields(registry._ModelInfo)}
        return registry._ModelInfo(**fields | {"architecture": name}), name

    registry._ModelRegistry.inspect_model_cls = inspect
    try:
        from vllm.entrypoints.common import cli_args  # type: ignore[import-not-found]
    except ImportError:
        from vllm.entrypoints.openai import cli_args  # type: ignore[import-not-found]
    from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found]
    from vllm.usage.usage_lib import UsageContext  # type: ignore[import-not-found]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

    def configuration(parsed: Any, kind: str) -> str:
        drafts = parsed.speculative_config or {}
        with tempfile.TemporaryDirectory() as folder:
            # A model that drafts for itself has layers for it; another one's drafts are made by weights of their own.
            parsed.model = _write_model(Path(folder, "model"), "mtp" if drafts.get("method") == "mtp" else kind)
            if "model" in drafts:
                drafts["model"] = _write_model(Path(folder, "head"), "head")
            parsed.skip_tokenizer_init = True
            cli_args.validate_parsed_serve_args(parsed)
            arguments = AsyncEngineArgs.from_cli_args(parsed)
            try:
                made = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
            except (ImportError, AttributeError) as error:  # Kernels and packages that only a GPU's machine has.
                return f"configuration not made: {error}"
            return _check_connectors(made, kind)

    return cli_args.make_arg_parser(FlexibleArgumentParser()), configuration


def _write_model(folder: Path, kind: str) -> str:
    """A model's configuration, as ``MODELS`` has it; the folder's path."""
    architecture, more = MODELS[kind]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]} | _SHAPE | more), encoding="utf-8")
    return str(folder)


def _check_connectors(made: Any, kind: str) -> str:
    """Look at what ``KVConnectorFactory.create_connector`` and the KV cache's configuration would refuse later.

    Returns:
        What could not be checked.

    Raises:
        ValueError: the hybrid KV cache manager is on, and a connector lacks it; or it is off, and the model needs it.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import (  # type: ignore[import-not-found]
        KVConnectorFactory,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1 import supports_hma  # type: ignore[import-not-found]

    unchecked = ""
    transfer, is_on = made.kv_transfer_config, not made.scheduler_config.disable_hybrid_kv_cache_manager
    if transfer is not None and is_on:
        try:
            connector = KVConnectorFactory.get_connector_class(transfer)
        except (ImportError, AttributeError) as error:  # A connector's own package, or kernels.
            unchecked = f"connector not asked: {error}"
        else:
            asked = getattr(KVConnectorFactory, "supports_hma_config", None)
            if not (asked(transfer) if asked else supports_hma(connector)):
                raise ValueError(f"connector {connector.__name__} does not support the hybrid manager, which is on")
    if kind in _OF_SEVERAL_ATTENTIONS and not is_on:
        raise ValueError(f"the hybrid KV cache manager is off for a model of kind {kind}")
    return unchecked


def sglang_parser() -> Parser:
    """``python -m sglang.launch_server``."""
    from hisearch.record.sglang.standins import install

    install(version("sglang"))
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]

    def arguments(parsed: Any, _: str) -> str:
        # 0.5.9 looks at the model when its arguments are made; 0.5.23 does so later.
        if version("sglang") != "0.5.9":
            ServerArgs.from_cli_args(parsed)
        return ""

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser, arguments


def answer_to(parser: Parser, words: list[str], kind: str) -> dict[str, str]:
    """The error, and what was not checked; "" where the command line is taken, and all was."""
    said = io.StringIO()
    error = unchecked = ""
    try:
        with contextlib.redirect_stderr(said):
            unchecked = parser[1](parser[0].parse_args(words), kind)
    except SystemExit:
        error = said.getvalue().strip().splitlines()[-1]
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    print(said.getvalue(), file=sys.stderr, end="")
    return {"error": error, "unchecked": unchecked}


def flags_of(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """Flag -> what it takes."""
    flags = {}
    for action in parser._actions:
        about: dict[str, Any] = {}
        if action.choices is not None:
            about["choices"] = sorted(str(choice) for choice in action.choices)
        if action.nargs == 0:
            about["switch"] = True
        flags |= {name: about for name in action.option_strings if name.startswith("--")}
    return flags


def main() -> None:
    """Read, parse, write."""
    engine = sys.argv[1]
    # The engines print what they like: the answer alone goes to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    parser = {"vllm": vllm_parser, "sglang": sglang_parser}[engine]()
    if "--flags" in sys.argv:
        answer: dict[str, Any] = flags_of(parser[0])
    else:
        leading = ["--model-path", "model"] if engine == "sglang" else ["model"]
        asked = json.load(sys.stdin).items()
        answer = {name: answer_to(parser, [*leading, *command["words"]], command["model"]) for name, command in asked}
    with answers:
        json.dump(answer, answers)


if __name__ == "__main__":
    main()
