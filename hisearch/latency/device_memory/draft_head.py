"""Memory of the head that drafts tokens: weights of a rank, which no published model size contains.

    mtp      a layer of the model's own kind, with experts where it has them, in ``head_dtype``; and the projection of
             the token's embedding and the hidden state, 2 h x h
    eagle    a dense layer in 16 bits, and the same projection
    eagle3   likewise; its attention reads the embedding beside the state (2 h), its projection three states of the
             model (3 h x h), and its LM head has ``DRAFT_VOCABULARY`` rows
    ngram    nothing

with h the model's hidden size. Projections are whole on each rank. Embeddings, and the LM head but for eagle3, are the
model's own. A head keeps KV as a layer of the model does. Linear attention keeps a state for each drafted token too.

Sources: vLLM 0.19.1, ``model_executor/models/deepseek_mtp.py``, ``llama_eagle.py``, ``llama_eagle3.py``,
``v1/spec_decode/eagle.py`` (``_maybe_share_embeddings``, ``_maybe_share_lm_head``), ``MambaSpec`` in
``v1/kv_cache_interface.py``. Assumed: that an EAGLE head's attention has the model's shape, as published heads of dense
models and of Kimi-K2.5 (lightseekorg/kimi-k2.5-eagle3-mla) have; and the width of its FFN where every layer of the
model is MoE (``FFN_WIDTHS``).
"""

from __future__ import annotations

from hisearch.latency.parameters import Matrix, attention_matrices, matrices, wide_dtype
from hisearch.latency.sharding import Parallelism, Shard, shard
from hisearch.specs.base import DTYPE_BYTES, DType
from hisearch.specs.deployments.speculation import SpeculationSpec
from hisearch.specs.models.acceptance import DraftMethodName
from hisearch.specs.models.model import ModelSpec

#: Rows of an EAGLE-3 head's vocabulary: the usual size of published heads (``draft_vocab_size`` of
#: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B); those that keep the model's vocabulary have more.
DRAFT_VOCABULARY = 32_000

#: Width of an EAGLE head's FFN, in hidden sizes, for models without a dense FFN; assumed, plausible are 2 to 6.
FFN_WIDTHS = 4

#: Formats of weights in which checkpoints have a head of multi-token prediction too. Those in 4 bits leave it in 16:
#: ``model.layers.61*`` is excluded in nvidia's NVFP4 of DeepSeek-R1 (SGLang, pull requests 7376 and 13115), the draft
#: layers of GLM-5 likewise (vLLM, pull request 49187).
HEAD_FORMATS = frozenset({"bf16", "fp16", "fp32", "fp8", "int8"})

#: Dense FFN of a layer, as ``latency.parameters`` names its matrices.
_DENSE_FFN = frozenset({"gate_up_proj", "down_proj"})


def head_dtype(method: DraftMethodName, weight_dtype: DType) -> DType:
    """Format of a head's weights, for a model with its own in ``weight_dtype``."""
    return weight_dtype if method == "mtp" and weight_dtype in HEAD_FORMATS else wide_dtype(weight_dtype)


def head_weight_bytes_per_rank(
    model: ModelSpec, split: Parallelism, weight_dtype: DType, speculation: SpeculationSpec | None
) -> float:
    """Bytes of a head's weights on each rank (the module's law); 0 without one.

    Raises:
        InvalidParallelism: the model cannot be split so.
    """
    if speculation is None or not speculation.head_layers:
        return 0.0
    part, hidden = shard(model, split), model.hidden_size
    wide = DTYPE_BYTES[wide_dtype(weight_dtype)]
    if speculation.method == "mtp":
        dtype = head_dtype("mtp", weight_dtype)
        layer = sum(_of_a_layer(matrix) * matrix.element_bytes(dtype) for matrix in _last_layer(model, part))
        return speculation.head_layers * (layer + wide * 2 * hidden * hidden)
    attention = [matrix for matrix in attention_matrices(model, part) if not matrix.name.startswith("linear_")]
    width = model.intermediate_size or FFN_WIDTHS * hidden
    ffn = (3 if model.gated_ffn else 2) * hidden * width / part.parallelism.tensor
    layers = speculation.head_layers * (sum(map(_of_a_layer, attention)) + ffn)
    if speculation.method == "eagle":
        return wide * (layers + 2 * hidden * hidden)
    embedded = sum(_of_a_layer(matrix) for matrix in attention if matrix.inputs == hidden)
    rows = min(DRAFT_VOCABULARY, model.vocab_size) / part.parallelism.tensor
    return wide * (layers + embedded + 3 * hidden * hidden + rows * hidden)


def _last_layer(model: ModelSpec, part: Shard) -> list[Matrix]:
    """The matrices of the model's last layer, with softmax attention."""
    dense = _DENSE_FFN if model.moe is not None else frozenset()
    return [
        matrix for matrix in matrices(model, part) if not matrix.name.startswith("linear_") and matrix.name not in dense
    ]


def _of_a_layer(matrix: Matrix) -> int:
    """Elements in one layer."""
    return matrix.elements // matrix.layers
