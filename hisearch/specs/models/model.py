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
    """Layers with a recurrent state of fixed size for each sequence in place of a KV cache.

    Of Mamba-2, queries and keys are C and B, whose heads are its groups, as wide as its state. Values are x.
    """

    kind: Literal["gated_delta", "kda", "mamba2"] = Field(
        "gated_delta",
        description="gated_delta: gated delta rule (Qwen3.5). kda: Kimi Delta Attention, whose decay has a gate for "
        "each channel. mamba2: Mamba-2 (Nemotron-H).",
    )
    layers: Count = Field(description="Layers of this kind; the others have the attention above.")
    key_heads: Count = Field(description="Heads of queries and keys; mamba2: n_groups.")
    value_heads: Count = Field(description="Heads of values, each with a state of key_head_dim x value_head_dim.")
    key_head_dim: Count = Field(description="Width of a query or key; mamba2: ssm_state_size.")
    value_head_dim: Count = Field(description="Width of a value.")
    state_dtype: Literal["fp32", "bf16"] = Field("fp32", description="Format of the states.")
    conv_kernel: Count = Field(4, description="Tokens under the short convolution of queries, keys and values.")
    gate_rank: NonNegativeInt = Field(
        0, description="kda: width of the latent of output gates; 0: they are projected directly."
    )
    bounded_decay: bool = Field(
        default=False, description="kda: decay has a lower bound, which vLLM's kernels that export states ask for."
    )
    chunk_tokens: Count = Field(64, description="Tokens of a chunk of the kernels' parallel form.")

    @model_validator(mode="after")
    def _check(self) -> LinearAttentionSpec:
        if self.kind == "kda" and (self.key_heads, self.key_head_dim) != (self.value_heads, self.value_head_dim):
            raise ValueError("kda has as many heads of keys as of values, as wide")
        if self.kind != "kda" and (self.gate_rank or self.bounded_decay):
            raise ValueError(f"gate_rank and bounded_decay are of kda, not of {self.kind}")
        return self


class WindowHeadsSpec(Strict):
    """Heads of layers with a sliding window, where they are others than those of layers with full attention."""

    attention_heads: Count = Field(description="Query heads.")
    kv_heads: Count = Field(description="Key and value heads.")
    head_dim: Count = Field(description="Width of a query or key.")
    value_head_dim: NonNegativeInt = Field(0, description="Width of a value; 0: head_dim.")

    @model_validator(mode="after")
    def _check(self) -> WindowHeadsSpec:
        if self.attention_heads % self.kv_heads:
            raise ValueError(f"attention_heads {self.attention_heads} is not a multiple of kv_heads {self.kv_heads}")
        return self


class MoeSpec(Strict):
    """Mixture-of-experts FFN layers."""

    experts: Count = Field(description="Routed experts per MoE layer.")
    experts_per_token: Count = Field(description="Routed experts that one token uses.")
    expert_intermediate_size: Count = Field(description="FFN width of one routed expert.")
    shared_experts: NonNegativeInt = Field(0, description="Experts that every token uses.")
    shared_intermediate_size: NonNegativeInt = Field(0, description="Total width of the shared experts' FFN.")
    separate_shared: bool = Field(
        default=False,
        description="The shared experts' output is normalised by itself (Gemma 4): engines run them before the routed "
        "ones, and tensor-parallel ranks add up both.",
    )
    leading_dense_layers: NonNegativeInt = Field(0, description="First layers that keep a dense FFN.")
    latent_size: NonNegativeInt = Field(
        0, description="Width in which routed experts work, between two projections of each layer; 0: hidden_size."
    )
    latent_norm: bool = Field(
        default=False, description="Experts' sum is normalised in the latent: ranks add it up before it is projected."
    )
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
    "window_qkv_proj",
    "window_o_proj",
    "q_proj",
    "q_up_proj",
    "qkv_down_proj",
    "kv_down_proj",
    "kv_up_proj",
    "index_q_proj",
    "index_k_proj",
    "linear_in_proj",
    "linear_scalar_proj",
    "linear_decay_proj",
    "linear_gate_proj",
    "linear_out_proj",
    "attention_gate_proj",
    "gate_up_proj",
    "down_proj",
    "shared_gate_up_proj",
    "shared_down_proj",
    "latent_down_proj",
    "latent_up_proj",
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
    architecture: str = Field(
        "", description="model_type of its config.json, where engines keep windows by it; absent: by what is below."
    )
    layers: Count = Field(description="Decoder layers: those with attention or a recurrent state.")
    ffn_layers: Count | None = Field(
        None,
        description="Layers with an FFN, where a layer is a mixer or an FFN alone (Nemotron-H); absent: all.",
    )
    hidden_size: Count = Field(description="Width of the residual stream.")
    attention_heads: Count = Field(description="Query heads.")
    kv_heads: Count = Field(description="Key and value heads; attention_heads where attention is not grouped.")
    head_dim: Count = Field(description="Width of a head.")
    value_head_dim: NonNegativeInt = Field(0, description="Width of a value, with attention gqa; 0: head_dim.")
    values_are_keys: bool = Field(
        default=False,
        description="Layers with full attention project to keys alone, which are their values too (Gemma 4). Engines "
        "multiply twice and cache both.",
    )
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
        default=False, description="Attention's output is gated by a projection as wide as it (Qwen3.5, Kimi K3)."
    )
    rotary_embedding: bool = Field(
        default=True, description="Attention rotates queries and keys; false where it has no embedding of positions."
    )
    residual_block_layers: NonNegativeInt = Field(
        0,
        description="Layers of a block whose sum all later layers attend to (Kimi K3's attention residuals); 0: a "
        "single residual stream.",
    )
    attention_head_gate: bool = Field(
        default=False, description="Attention's output is gated by one number for each head (Step-3.5)."
    )
    norms_per_layer: Count = Field(2, description="Norms of the residual stream's width in a layer; 4 in Gemma 3.")
    logit_softcap: bool = Field(default=False, description="Logits pass through a scaled tanh (Gemma 4).")
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
    window_heads: WindowHeadsSpec | None = Field(
        None, description="Heads of the layers with a window; absent where they are those of the others."
    )
    attention_sinks: bool = Field(
        default=False,
        description="Softmax has a learned sink for each head (gpt-oss; MiMo-V2 in layers with a window), which takes "
        "other kernels.",
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
        if self.attention != "gqa" and (self.value_head_dim or self.values_are_keys):
            raise ValueError("value_head_dim and values_are_keys belong to attention gqa")
        if self.values_are_keys and self.value_head_dim not in (0, self.head_dim):
            raise ValueError("values_are_keys needs values as wide as keys")
        if self.window_heads is not None and (self.attention != "gqa" or not self.sliding_window_tokens):
            raise ValueError("window_heads needs attention gqa and sliding_window_tokens")
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

    @property
    def ffn_count(self) -> int:
        """Layers with an FFN, dense or of experts."""
        return self.layers if self.ffn_layers is None else self.ffn_layers

    @property
    def norm_count(self) -> int:
        """Norms of the residual stream's width in all layers: half of ``norms_per_layer`` for a mixer or FFN each."""
        return self.norms_per_layer * (self.layers + self.ffn_count) // 2
