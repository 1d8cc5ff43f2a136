"""Translates a ``config.json`` as read."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hisearch.specs.huggingface.attention import attention, linear_attention, window
from hisearch.specs.huggingface.config import Config
from hisearch.specs.huggingface.exclusions import excluded_modules, kept_wide, kept_wide_of_nemotron
from hisearch.specs.huggingface.families import FAMILIES
from hisearch.specs.huggingface.feed_forward import feed_forward
from hisearch.specs.huggingface.formats import quantization_of, weight_formats
from hisearch.specs.huggingface.recurrent import with_states
from hisearch.specs.huggingface.sparse_kinds import sparse_kinds
from hisearch.specs.huggingface.towers import towers
from hisearch.specs.huggingface.windowed import window_heads
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.source import Source, read_source
from hisearch.specs.wording import described

#: ``ORGANISATION/MODEL``.
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

#: File next to a checkpoint whose publisher says how to sample.
GENERATION_CONFIG_FILE = "generation_config.json"


def model_from_config(source: Source, name: str, as_of: datetime.date) -> ModelSpec:
    """Converts the configuration in ``source.data``.

    Args:
        source: a ``config.json`` as read.
        name: what to call the model where the configuration does not say.
        as_of: date for the provenance.

    Raises:
        SpecError: an architecture that is not known, keys that are missing, values that make no model.
    """
    raw_config, inner = source.data, source.data.get("text_config")
    if isinstance(inner, dict):
        # A multimodal model: its language model is served token by token.
        outer_keys = ("_name_or_path", "tie_word_embeddings", "quantization_config", "dtype")
        kept = {key: raw_config[key] for key in outer_keys if key in raw_config}
        # Where it does not say what it is, it is what the model is named after.
        kept |= {"model_type": raw_config["model_type"]} if "model_type" in raw_config else {}
        raw_config = {**kept, **inner}
    config = Config(raw_config)
    kind = str(config.get("model_type", "")).removesuffix("_text")
    if kind not in FAMILIES:
        message = (
            f"architecture '{kind}' is not known; known: {', '.join(FAMILIES)}. Any other can be written by hand, as "
            "a document of kind Model (docs/specs.md#model): copy the nearest of `hisearch list Model`"
        )
        raise source.error(("model_type",), message)
    family = FAMILIES[kind]
    config.data = {**family.defaults, **{key: value for key, value in config.data.items() if value is not None}}
    data: dict[str, Any] = {
        "huggingface_id": _published_id(config) or name,
        "layers": 1 if family.states == "mamba2" else config.need("num_hidden_layers"),
        "hidden_size": config.need("hidden_size"),
        "vocab_size": config.need("vocab_size"),
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
        "max_context_tokens": config.need("max_position_embeddings", "model_max_length"),
        **weight_formats(source, config, kind, family),
        "attention_stays_wide": kind == "gpt_oss",
        "qk_norm_per_layer": config.get("qk_norm_type", "") == "per_layer",
        "attention_output_gate": family.linear and config.get("attn_output_gate", True),
        "norms_per_layer": family.norms,
        "provenance": {"source": f"config.json of {name}", "as_of": as_of},
        **_bounded_sampling(source),
        **attention(config, kind, family),
        **linear_attention(config, family),
        **sparse_kinds(config, family),
        **feed_forward(source, config, family),
        **({} if family.compressed else window(config, kind)),
        **window_heads(config, kind),
        **towers(source.data, kind, config.need("hidden_size")),
        **with_states(config, family),
    }
    if not {"other_formats", "kept_wide"} & data.keys():
        modules = excluded_modules(quantization_of(source, config))
        wide = kept_wide_of_nemotron(modules) if family.states == "mamba2" else kept_wide(modules, data)
        data |= {"kept_wide": {data["weight_dtype"]: wide}} if wide else {}
    if config.faults:
        raise source.error((), f"config.json of model_type {kind}: {'; '.join(config.faults)}")
    try:
        return ModelSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise source.error((), f"makes no model: {key}: {first['msg']}".replace(": : ", ": ")) from None


def _published_id(config: Config) -> str:
    """Its ``_name_or_path`` where that is an id; "" where it is absent, or a folder of whoever saved the file."""
    name = str(config.get("_name_or_path", ""))
    return name if _ID.fullmatch(name) else ""


def _bounded_sampling(source: Source) -> dict[str, Any]:
    """Whether ``generation_config.json`` next to the configuration bounds sampling; {} where there is none."""
    path = Path(source.path).with_name(GENERATION_CONFIG_FILE)
    if not path.is_file():
        return {}
    generation_source = read_source(path)
    if not isinstance(generation_source.data, dict):
        raise generation_source.error((), "expected the JSON object of a model's generation_config.json")
    top_p, top_k = generation_source.data.get("top_p"), generation_source.data.get("top_k")
    for name, value in (("top_p", top_p), ("top_k", top_k)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise generation_source.error((name,), f"is {described(value)}, expected a number")
    return {"bounded_sampling": (top_p is not None and top_p < 1) or (top_k is not None and top_k > 0)}
