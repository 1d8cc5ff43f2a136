"""Push command lines through an engine's own argument parser: run with the Python that has the engine.

Reads {name: words} as JSON from standard input, the words without program and model, and writes {name: error} with ""
for those that the parser takes; with ``--flags`` it writes what the parser has instead. No GPU: vLLM is told that it
runs on one, and makes its whole configuration for a model of Qwen3's shape. SGLang's kernels are replaced by stand-ins.
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
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

#: Parser, and what makes the engine's own arguments of what it returns.
Parser = tuple[argparse.ArgumentParser, Callable[[Any], Any]]


#: Fields of what vLLM's registry says of a model; all others are False.
_MODEL_INFO = {
    "is_text_generation_model": True, "supports_pp": True, "supports_lora": True, "attn_type": "decoder",
    "default_seq_pooling_type": "LAST", "default_tok_pooling_type": "ALL", "score_type": "bi-encoder",
    "supported_video_pruning_methods": (),
}  # fmt: skip
#: A model's configuration: 64 layers in groups of 8 KV heads, with experts and without.
_MODEL = {
    "hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 64,
    "intermediate_size": 25600, "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536}


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

    def configuration(parsed: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            kind, more = ("qwen3_moe", _EXPERTS) if parsed.enable_expert_parallel else ("qwen3", {})
            architecture = "Qwen3MoeForCausalLM" if more else "Qwen3ForCausalLM"
            text = json.dumps({"architectures": [architecture], "model_type": kind} | _MODEL | more)
            Path(folder, "config.json").write_text(text, encoding="utf-8")
            parsed.model, parsed.skip_tokenizer_init = folder, True
            cli_args.validate_parsed_serve_args(parsed)
            arguments = AsyncEngineArgs.from_cli_args(parsed)
            try:
                arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
            except (ImportError, AttributeError) as error:  # Kernels and packages that only a GPU's machine has.
                print(f"configuration not made: {error}", file=sys.stderr)

    return cli_args.make_arg_parser(FlexibleArgumentParser()), configuration


def sglang_parser() -> Parser:
    """``python -m sglang.launch_server``."""
    from hisearch.record.sglang.standins import install

    install(version("sglang"))
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]

    def arguments(parsed: Any) -> Any:
        # 0.5.9 looks at the model when its arguments are made; 0.5.23 does so later.
        return parsed if version("sglang") == "0.5.9" else ServerArgs.from_cli_args(parsed)

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser, arguments


def error_of(parser: Parser, words: list[str]) -> str:
    """The error, or "" where the command line is taken."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser[1](parser[0].parse_args(words))
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        print(said.getvalue(), file=sys.stderr, end="")
    return ""


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
        answer = {name: error_of(parser, [*leading, *words]) for name, words in json.load(sys.stdin).items()}
    with answers:
        json.dump(answer, answers)


if __name__ == "__main__":
    main()
