"""Kind ``Model``: the architecture of a decoder-only transformer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from hisearch.specs.base import Count, DType, Fraction, NonNegativeInt, Provenance, Strict
from hisearch.specs.models.acceptance import AcceptanceCurveSpec, DraftMethodName
from hisearch.specs.models.sparse_kinds import BlockSparseSpec, CompressedAttentionSpec
from hisearch.specs.models.towers import TowersSpec


class MlaSpec(Strict):
    """Multi-head latent attention (DeepSeek-V2/V3): per-head and latent widths, in elements."""

    q_lora_rank: NonNegativeInt = Field(description="Width of the queries' latent; 0: queries are projected directly.")
    kv_lora_rank: Count = Field(description="Width of the latent that the KV cache keeps.")
    qk_nope_head_dim: Count = Field(description="Query and key width of a head without rotary embedding.")
    qk_rope_head_dim: Count = Field(description="Query and key width of a head with rotary embedding.")
    v_head_dim: Count = Field(description="Value width of a head.")


class SparseAttentionSpec(Strict):
    """DeepSeek's sparse attention (V3.2): an indexer scores every cached token, and MLA reads the best alone."""

    index_heads: Count = Field(description="Heads of the indexer's queries; its key is one for all.")
    index_head_dim: Count = Field(description="Width of an index query or key, which are fp8.")
    topk: Count = Field(description="Tokens that a query reads, of those before it.")
    index_layers: NonNegativeInt = Field(
        0, description="Layers with an indexer; the others read what an earlier one's chose. 0: every layer."
    )


class LinearAttentionSpec(Strict):
    """Layers of linear attention (gated delta rule): a state of fixed size for each sequence in place of a KV cache."""

    layers: Count = Field(description="Layers of this kind; the others have the attention above.")
    key_heads: Count = Field(description="Heads of queries and keys.")
    value_heads: Count = Field(description="Heads of values, each with a state of key_head_dim x value_head_dim.")
    key_head_dim: Count = Field(description="Width of a query or key.")
    value_head_dim: Count = Field(description="Width of a value.")
    state_dtype: Literal["fp32", "bf16"] = Field("fp32", description="Format of the states.")
    conv_kernel: Count = Field(4, description="Tokens under the short convolution of queries, keys and values.")


class MoeSpec(Strict):
    """Mixture-of-experts FFN layers."""

    experts: Count = Field(description="Routed experts per MoE layer.")
    experts_per_token: Count = Field(description="Routed experts that one token uses.")
    expert_intermediate_size: Count = Field(description="FFN width of one routed expert.")
    shared_experts: NonNegativeInt = Field(0, description="Experts that every token uses.")
    shared_intermediate_size: NonNegativeInt = Field(0, description="Total width of the shared experts' FFN.")
    leading_dense_layers: NonNegativeInt = Field(0, description="First layers that keep a dense FFN.")
    router_dtype: Literal["bf16", "fp32"] = Field(
        "bf16", description="Format in which engines multiply by the router; fp32 runs without tensor cores."
    )
    choice_operators: Count = Field(
        1,
        description="Operators in which engines choose a token's experts: 1 where a kernel does, 21 of the sparse "
        "mixer of Phi's mixtures, which PyTorch runs one by one.",
    )

    @model_validator(mode="after")
    def _check(self) -> MoeSpec:
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token {self.experts_per_token} exceeds experts {self.experts}")
        return self


#: Matrices that have formats of their own, as ``latency.parameters`` names them.
MatrixName = Literal[
    "qkv_proj",
    "o_proj",
    "q_proj",
    "q_up_proj",
    "qkv_down_proj",
    "kv_down_proj",
    "kv_up_proj",
    "index_q_proj",
    "index_k_proj",
    "linear_in_proj",
    "linear_scalar_proj",
    "linear_out_proj",
    "gate_up_proj",
    "down_proj",
    "shared_gate_up_proj",
    "shared_down_proj",
    "o_down_proj",
    "o_up_proj",
    "qkv_index_proj",
    "experts_gate_up_proj",
    "experts_down_proj",
    "lm_head",
]


def names_weights(huggingface_id: str) -> bool:
    """Whether an engine can be started with it: a Hugging Face id has a slash, and so has a folder."""
    return "/" in huggingface_id


def _check_weights(text: str) -> str:
    if not names_weights(text):
        raise ValueError(f"'{text}' is neither ORGANISATION/MODEL nor a folder: both have a slash")
    return text


#: A Hugging Face id, or a folder.
WeightsName = Annotated[str, AfterValidator(_check_weights)]


class ModelSpec(Strict):
    """A decoder-only transformer, by its own published ``config.json``."""

    huggingface_id: str = Field(
        min_length=1,
        description="What launch scripts serve: ORGANISATION/MODEL, or a folder. A name without a slash is neither: "
        "exports then ask for the weights.",
    )
    checkpoints: list[WeightsName] = Field(
        default_factory=list,
        description="Ids of other published checkpoints for which all of this holds too. `size`, `run` and `observe` "
        "find the model by them.",
    )
    layers: Count = Field(description="Decoder layers.")
    hidden_size: Count = Field(description="Width of the residual stream.")
    attention_heads: Count = Field(description="Query heads.")
    kv_heads: Count = Field(description="Key and value heads; attention_heads where attention is not grouped.")
    head_dim: Count = Field(description="Width of a head.")
    intermediate_size: NonNegativeInt = Field(description="Dense FFN width; 0 where every layer is MoE.")
    vocab_size: Count = Field(description="Rows of the embedding and the LM head.")
    gated_ffn: bool = Field(True, description="Three matrices (gate, up, down) rather than two.")
    tie_word_embeddings: bool = Field(False, description="Embedding and LM head are one matrix.")
    attention: Literal["gqa", "mla", "compressed"] = Field(
        "gqa", description="gqa covers multi-head and multi-query too; compressed is DeepSeek-V4's."
    )
    mla: MlaSpec | None = Field(None, description="With attention mla, and only then.")
    sparse_attention: SparseAttentionSpec | None = Field(
        None, description="With attention mla alone; absent where every query reads all tokens before it."
    )
    compressed_attention: CompressedAttentionSpec | None = Field(
        None, description="With attention compressed, and only then."
    )
    block_sparse: BlockSparseSpec | None = Field(
        None, description="With attention gqa alone; absent where every query reads all tokens before it."
    )
    residual_streams: Count = Field(
        1,
        description="Residual streams that every attention and FFN reads mixed into one and writes to "
        "(hyper-connections: DeepSeek-V4's hc_mult).",
    )
    attention_output_gate: bool = Field(
        default=False, description="Attention's output is gated by a projection as wide as the queries (Qwen3.5)."
    )
    qk_norm_per_layer: bool = Field(
        default=False,
        description="Queries and keys are normalised over all heads of a layer (MiniMax-M2): tensor-parallel ranks add "
        "up their sums of squares in every layer.",
    )
    bounded_sampling: bool | None = Field(
        None,
        description="Whether its generation_config.json bounds sampling by top-p or top-k; where absent, as its "
        "publisher's other models do.",
    )
    linear_attention: LinearAttentionSpec | None = Field(None, description="Absent where every layer keeps a KV cache.")
    moe: MoeSpec | None = Field(None, description="Absent for a dense model.")
    sliding_window_tokens: NonNegativeInt = Field(0, description="Attention window; 0: full attention in every layer.")
    sliding_window_layer_fraction: Fraction = Field(0.5, description="Share of layers that use the window.")
    attention_sinks: bool = Field(
        default=False, description="Softmax has a learned sink for each head (gpt-oss), which takes other kernels."
    )
    windows_are_chunks: bool = Field(
        default=False,
        description="Attention stays within chunks of the window's size (Llama 4); vLLM keeps the KV of all chunks.",
    )
    attention_stays_wide: bool = Field(
        default=False, description="Attention weights keep 16 bits where the rest is quantised (gpt-oss)."
    )
    kept_wide: dict[DType, list[MatrixName]] = Field(
        default_factory=dict,
        description="By format of the weights: dense matrices that checkpoints in it keep in 16 bits all the same.",
    )
    other_formats: dict[DType, dict[DType, list[MatrixName]]] = Field(
        default_factory=dict,
        description="By format of the weights: matrices that checkpoints in it have in another, quantised format; and "
        "lm_head, which stays in 16 bits where it is not named.",
    )
    weight_only: list[DType] = Field(
        default_factory=list,
        description="Quantised formats whose weights engines unpack to multiply in 16 bits (W4A16), whatever the "
        "accelerator could.",
    )
    weight_dtype: DType = Field(
        "bf16", description="Format the published weights are stored in; fp4 is MXFP4, nvfp4 NVFP4."
    )
    max_context_tokens: Count = Field(
        description="Longest sequence; requests whose prompt and declared output exceed it are refused."
    )
    speculation: dict[DraftMethodName, AcceptanceCurveSpec] = Field(
        default_factory=dict,
        description="By method of drafting: measured tokens of a step, which pools use that state no acceptance.",
    )
    towers: TowersSpec | None = Field(
        None, description="Encoders of images, video and sound, which engines load too; absent where there are none."
    )
    provenance: Provenance = Field(description="Where the facts come from.")

    @model_validator(mode="after")
    def _check(self) -> ModelSpec:
        if self.attention_heads % self.kv_heads:
            raise ValueError(f"attention_heads {self.attention_heads} is not a multiple of kv_heads {self.kv_heads}")
        if (self.attention == "mla") != (self.mla is not None):
            raise ValueError("attention: mla needs an mla section, and only then")
        self._check_sparse_kinds()
        if self.sparse_attention is not None and (self.mla is None or not self.mla.q_lora_rank):
            raise ValueError(
                "sparse_attention needs an mla section with a q_lora_rank, of which its indexer's queries are made"
            )
        if self.sparse_attention is not None and self.sparse_attention.index_layers > self.layers:
            raise ValueError(f"sparse_attention.index_layers exceeds layers {self.layers}")
        if self.linear_attention is not None:
            if self.linear_attention.layers >= self.layers:
                raise ValueError("linear_attention.layers must leave a layer that keeps a KV cache")
            if self.sliding_window_tokens:
                raise ValueError("linear_attention and sliding_window_tokens together are not known")
        if self.moe is None and self.intermediate_size == 0:
            raise ValueError("intermediate_size is 0 but the model has no moe section")
        return self

    def _check_sparse_kinds(self) -> None:
        compressed, blocks = self.compressed_attention, self.block_sparse
        if (self.attention == "compressed") != (compressed is not None):
            raise ValueError("attention: compressed needs a compressed_attention section, and only then")
        if compressed is not None:
            if self.kv_heads != 1 or self.linear_attention is not None or self.sliding_window_tokens:
                raise ValueError(
                    "attention: compressed has one KV head, and neither linear_attention nor sliding_window_tokens"
                )
            if sum(kind.layers for kind in compressed.entries) > self.layers:
                raise ValueError(f"compressed_attention.entries have more than {self.layers} layers")
        if blocks is not None and (
            self.attention != "gqa" or self.linear_attention is not None or self.sliding_window_tokens
        ):
            raise ValueError("block_sparse needs attention gqa without linear_attention and sliding_window_tokens")
        if blocks is not None and blocks.layers > self.layers:
            raise ValueError(f"block_sparse.layers exceeds layers {self.layers}")
        if self.residual_streams > 1 and self.attention != "compressed":
            raise ValueError("residual_streams above 1 are known beside attention compressed alone")
