"""Kind ``Model``: the architecture of a decoder-only transformer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from hisearch.specs.base import Count, DType, Fraction, NonNegativeInt, Provenance, Strict


class MlaSpec(Strict):
    """Multi-head latent attention (DeepSeek-V2/V3): per-head and latent widths, in elements."""

    q_lora_rank: NonNegativeInt = Field(description="0: queries are projected directly.")
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count


class MoeSpec(Strict):
    """Mixture-of-experts FFN layers."""

    experts: Count = Field(description="Routed experts per MoE layer.")
    experts_per_token: Count
    expert_intermediate_size: Count
    shared_experts: NonNegativeInt = 0
    shared_intermediate_size: NonNegativeInt = Field(0, description="Total width of the shared experts' FFN.")
    leading_dense_layers: NonNegativeInt = Field(0, description="First layers that keep a dense FFN.")

    @model_validator(mode="after")
    def _check(self) -> MoeSpec:
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token {self.experts_per_token} exceeds experts {self.experts}")
        return self


class ModelSpec(Strict):
    """A decoder-only transformer, by its own published ``config.json``."""

    huggingface_id: str = Field(min_length=1)
    layers: Count
    hidden_size: Count
    attention_heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate_size: NonNegativeInt = Field(description="Dense FFN width; 0 where every layer is MoE.")
    vocab_size: Count
    gated_ffn: bool = True
    tie_word_embeddings: bool = False
    attention: Literal["gqa", "mla"] = "gqa"
    mla: MlaSpec | None = None
    moe: MoeSpec | None = None
    sliding_window_tokens: NonNegativeInt = Field(0, description="0: full attention in every layer.")
    sliding_window_layer_fraction: Fraction = Field(0.5, description="Share of layers that use the window.")
    weight_dtype: DType = Field("bf16", description="Format the published weights are stored in.")
    max_context_tokens: Count
    provenance: Provenance

    @model_validator(mode="after")
    def _check(self) -> ModelSpec:
        if self.attention_heads % self.kv_heads:
            raise ValueError(f"attention_heads {self.attention_heads} is not a multiple of kv_heads {self.kv_heads}")
        if (self.attention == "mla") != (self.mla is not None):
            raise ValueError("attention: mla needs an mla section, and only then")
        if self.moe is None and self.intermediate_size == 0:
            raise ValueError("intermediate_size is 0 but the model has no moe section")
        return self
