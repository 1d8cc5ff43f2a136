"""Coefficients of operator families on one accelerator under one engine: the laws of ``hisearch.latency.laws``.

Shares are of the accelerator's data sheet, so that a law carries over to another accelerator by its own sheet.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from hisearch.specs.base import Count, DType, EngineName, Evidence, NonNegative, NonNegativeInt, Positive, Strict
from hisearch.specs.versions import compiles_engine, precedes, version_key

#: An A100 holds 1,305 MHz of its 1,410 at its power limit in HPL, the clock of NVIDIA's Rpeak
#: (glennklockwood.com/garden/peak-FLOPS). Other accelerators are taken to hold as much, an assumption, but for those
#: that ``refit.boards`` knows better.
SUSTAINED_CLOCK = 0.926

#: Share of a sheet's rate. Clocks above base and caches can carry a fit a little past 1.
Share = Annotated[float, Field(gt=0, le=1.5)]
Sharpness = Annotated[float, Field(ge=1, le=64)]


class FitError(Strict):
    """Absolute percentage errors of a law on the measurements it stands for."""

    points: Count = Field(description="Measurements.")
    median: NonNegative = Field(description="Median, of shapes left out of the fit (0.05 = 5 %).")
    p90: NonNegative = Field(description="90th percentile, of shapes left out of the fit.")
    fitted_median: NonNegative = Field(description="Median with all shapes in the fit.")
    decode_median: NonNegative | None = Field(
        None,
        description="Median of steps of up to 256 tokens, of shapes left out; where steps of all kinds were measured.",
    )
    prefill_median: NonNegative | None = Field(None, description="Median of longer steps, likewise.")


#: Engine -> a version, and how many products made the inputs of linear attention before it: queries, keys and values,
#: gates, and each scalar separately (SGLang 0.5.9, ``models/qwen3_5.py``; joined by its pull requests 19321 and 21019).
FORMER_LINEAR_INPUTS: dict[EngineName, tuple[str, int]] = {"sglang": ("0.5.10", 4)}

#: Any part of the laws in which versions of an engine may differ.
_Laws = TypeVar("_Laws")


class LawTerms(Strict):
    """Fields that all laws have."""

    evidence: Evidence = Field("fitted", description="How the coefficients are known.")
    source: str = Field(min_length=1, description="Table, engine and version that they were fitted on.")
    error: FitError | None = Field(None, description="Cross-validated; none where the law was taken from elsewhere.")
    ranges: dict[str, tuple[float, float]] = Field(
        default_factory=dict, description="Smallest and largest of each measured dimension; beyond, the law is a guess."
    )


class GemmTerms(LawTerms):
    """``y[m, n] = x[m, k] @ w[k, n]``, quantisation of x included."""

    launch_s: NonNegative = Field(description="Kernel launch and its gap.")
    fill_s: NonNegative = Field(description="Latency of the pipeline's first loads, at full depth.")
    fill_depth: Positive = Field(description="Depth k at which half of it is seen.")
    bandwidth: Share = Field(description="Share of the memory bandwidth, of weights and activations.")
    flops: Share = Field(description="Share of the peak, of the largest tile, of full waves.")
    tile_losses: tuple[NonNegative, NonNegative, NonNegative] = Field(
        description="Time that each next smaller tile adds per FLOP, as a share of the largest tile's."
    )
    wave_s: NonNegative = Field(description="Prologue and epilogue of one wave of tiles.")
    tile: tuple[Count, Count] | None = Field(
        None, description="Rows and columns of the only tile that the kernel has; none: the library chooses."
    )
    quantisation: Annotated[float, Field(ge=0, le=1)] = Field(description="1: a partial wave costs a whole one.")
    sharpness: Sharpness = Field(description="p of the p-norm that joins memory and arithmetic time.")
    quantise_bandwidth: Positive | None = Field(
        None, description="Share of the memory bandwidth at which activations are quantised; none for 16-bit operands."
    )
    quantise_token_s: NonNegative | None = Field(
        None, description="Time to quantise a token's activations, whatever their width, on top of that; none: nothing."
    )
    tokens: list[Count] = Field(default_factory=list, description="Knots m of the correction.")
    correction: list[Positive] = Field(default_factory=list, description="Factor at each knot, straight in log m.")

    @model_validator(mode="after")
    def _check(self) -> GemmTerms:
        if len(self.tokens) != len(self.correction) or self.tokens != sorted(set(self.tokens)):
            raise ValueError("tokens and correction need as many entries, tokens in rising order")
        return self


class QuantiseTerms(LawTerms):
    """The passes that bring the activations of one product to fp8: one finds their scale, one applies it."""

    launch_s: NonNegative = Field(description="Kernel launches and their gaps.")
    bandwidth: Share = Field(
        description="Share of the memory bandwidth at which 16 bits are read once and 8 written, in all."
    )


class PrefillTerms(LawTerms):
    """Causal attention of prompt chunks."""

    launch_s: NonNegative = Field(description="Kernel launch, its gap, and scheduling of the batch.")
    flops: Share = Field(description="Share of the 16-bit peak at a head width of 128.")
    rate_64: Positive = Field(description="Rate at a head width of 64, relative to that of 128.")
    rate_256: Positive = Field(description="Rate at a head width of 256, relative to that of 128.")
    bandwidth: Share = Field(description="Share of the memory bandwidth.")
    pad_tokens: Positive = Field(description="Keys by which the diagonal of a chunk is padded.")
    tile_s: NonNegative = Field(description="Prologue and epilogue of one tile of 128 queries of a head.")
    longest_share: Annotated[float, Field(gt=0, le=1)] = Field(
        description="Time of the longest tile alone, as a share of what it takes among others."
    )
    sharpness: Sharpness = Field(description="p of the p-norm that joins memory and arithmetic time.")


class MixedTerms(LawTerms):
    """Mixed steps: decodes with prompt chunks, where every head of each takes its own tile (FlashAttention 2)."""

    rows: Count = Field(description="Queries of a tile; a decode fills one of them.")
    keys: Count = Field(description="Keys that a tile reads at a time.")
    flops: Share = Field(description="Share of a multiprocessor's 16-bit peak, of whole tiles.")
    tile_s: NonNegative = Field(description="Prologue and epilogue of one tile.")


class DecodeTerms(LawTerms):
    """Attention of one new token per sequence."""

    launch_s: NonNegative = Field(description="Kernel launch, its gap, and the combination of splits.")
    fill_s: NonNegative = Field(description="Latency of one split's loop over the context, at long contexts.")
    fill_tokens: Positive = Field(description="Context at which half of it is seen.")
    bandwidth: Share = Field(description="Share of the memory bandwidth at which the context is read.")
    rate_64: Positive = Field(description="Rate at a head width of 64, relative to that of 128.")
    rate_256: Positive = Field(description="Rate at a head width of 256, relative to that of 128.")
    flops: Share = Field(description="Share of the 16-bit peak; queries count as 16 rows at least.")
    unit_s: NonNegative = Field(description="One sequence and KV head on one multiprocessor.")
    head_s: NonNegative = Field(0.0, description="Each query head of it besides: its softmax, and its output.")
    serial_token_s: NonNegative = Field(
        description="A token of the longest context, where the kernel does not split a sequence over multiprocessors."
    )
    sharpness: Sharpness = Field(description="p of the p-norm that joins memory, arithmetic, unit and serial time.")
    cache_bytes: Positive = Field(
        description="Contexts below this were read from the L2 cache in the measurement, which repeats one call; a "
        "step reads them from memory."
    )
    cache_speedup: Annotated[float, Field(ge=1)] = Field(description="How much faster they were.")
    cached_fill: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of `fill_s` that was seen there: the cache answers sooner than memory."
    )


class HeadLaws(Strict):
    """Attention of models whose layers have heads of several widths, for which engines have other kernels."""

    head_dim: Count = Field(description="Width of a key.")
    window_tokens: NonNegativeInt = Field(0, description="Window of the measurements; 0: full attention.")
    kv_dtype: DType = Field(description="Format of the KV cache.")
    prefill: PrefillTerms = Field(description="Prompt chunks.")
    decode: DecodeTerms = Field(description="New tokens.")


class MoeTerms(LawTerms):
    """Routed experts of a layer: permutation, two grouped products, activation, weighted sum."""

    launch_s: NonNegative = Field(description="All kernels of the layer.")
    bandwidth: Share = Field(description="Share of the memory bandwidth at which experts are read.")
    flops: Share = Field(description="Share of the peak, of tiles of 128 tokens of an expert.")
    small_tile_loss: NonNegative = Field(description="Time that tiles of 16 and 64 tokens add per FLOP, as a share.")
    wave_s: NonNegative = Field(description="Prologue and epilogue of one wave of tiles.")
    quantisation: Annotated[float, Field(ge=0, le=1)] = Field(description="1: a partial wave costs a whole one.")
    permute_bandwidth: Positive = Field(
        description="Share of the memory bandwidth at which a rank's tokens are permuted."
    )
    route_bandwidth: Positive = Field(
        description="Share of the memory bandwidth for passes over the tokens of all ranks that hold experts."
    )
    sharpness: Sharpness = Field(description="p of the p-norm that joins memory and arithmetic time.")
    tokens: list[Count] = Field(default_factory=list, description="Knots of the correction, tokens of the layer.")
    correction: list[Positive] = Field(default_factory=list, description="Factor at each knot, straight in log tokens.")


class LinearTerms(LawTerms):
    """Prompts in linear attention: a chunked delta rule of one layer, heads of 128 x 128."""

    launch_s: NonNegative = Field(description="All kernels of the layer.")
    serial_token_s: NonNegative = Field(description="Per token of the longest prompt: its chunks follow each other.")
    head_token_s: NonNegative = Field(description="Per token of the step and value head of a rank.")


class SparsePhase(Strict):
    """Sparse attention of prompts, or of decodes."""

    token_s: NonNegative = Field(description="Per token: norms, rotary embedding, quantising, writing.")
    score_flops: Share = Field(description="Share of the fp8 peak at which pairs are scored.")
    choose_s: NonNegative = Field(description="Choosing among scores, per pair.")
    read_s: list[NonNegative] = Field(
        min_length=1, description="Per token that a query reads, at each number of heads in ``heads``."
    )


class SparseTerms(LawTerms):
    """DeepSeek's sparse attention: the block of a layer but its dense products."""

    launch_s: NonNegative = Field(description="All small kernels of the block.")
    heads: list[Count] = Field(min_length=1, description="Heads of a rank that were measured, rising.")
    prefill: SparsePhase = Field(description="Prompts.")
    decode: SparsePhase = Field(description="Decodes.")
    serial_score_s: NonNegative = Field(description="Per token of the mean context, where decodes score and choose.")
    serial_read_s: NonNegative = Field(description="Per token that one decode reads.")
    beyond_s: NonNegative = Field(description="Where a sequence is longer than topk: choosing needs more kernels.")
    dense_short: bool = Field(description="Prompts that end within topk tokens are attended to as ordinary MLA.")

    @model_validator(mode="after")
    def _check(self) -> SparseTerms:
        if not len(self.heads) == len(self.prefill.read_s) == len(self.decode.read_s):
            raise ValueError("heads and read_s need as many entries")
        if self.heads != sorted(set(self.heads)):
            raise ValueError("heads need a rising order")
        return self


class EntriesPhase(Strict):
    """Attention that reads compressed entries or chosen blocks, of prompts or of decodes."""

    token_s: NonNegative = Field(description="Per token: norms, rotary embedding, quantising, writing, compressing.")
    index_token_s: NonNegative = Field(description="Per token, of an indexer.")
    head_token_s: NonNegative = Field(description="Per token and query head of a rank.")
    sequence_s: NonNegative = Field(description="Per sequence.")
    read_flops: Share = Field(description="Share of the 16-bit peak at which pairs are attended to.")
    score_flops: Share = Field(description="Share of the fp8 peak at which pairs are scored and the best chosen.")


class EntriesTerms(LawTerms):
    """A layer's attention that reads compressed entries or chosen blocks, but its dense products."""

    launch_s: NonNegative = Field(description="All small kernels of a layer.")
    index_launch_s: NonNegative = Field(description="Those of an indexer.")
    prefill: EntriesPhase = Field(description="Prompts.")
    decode: EntriesPhase = Field(description="Decodes.")


class CollectiveCurve(Strict):
    """Seconds of a collective by size, straight between knots in both logarithms; the last slope goes on."""

    ranks: Count = Field(description="That take part.")
    payload_bytes: list[Positive] = Field(min_length=2, description="Whole tensor, rising.")
    seconds: list[Positive] = Field(min_length=2, description="At each size.")
    up_to_bytes: Positive | None = Field(
        None, description="Of a fused one: the largest that is; 2,048 tokens of any model (SGLang) where absent."
    )

    @model_validator(mode="after")
    def _check(self) -> CollectiveCurve:
        if len(self.payload_bytes) != len(self.seconds) or self.payload_bytes != sorted(set(self.payload_bytes)):
            raise ValueError("payload_bytes and seconds need as many entries, payload_bytes in rising order")
        return self


class CollectiveCurves(Strict):
    """Collectives inside one host, a curve for each number of ranks."""

    source: str = Field(min_length=1, description="Table and version.")
    all_reduce: list[CollectiveCurve] = Field(min_length=1, description="The engine's own, inside a CUDA graph.")
    all_gather: list[CollectiveCurve] = Field(default_factory=list, description="NCCL's.")
    reduce_scatter: list[CollectiveCurve] = Field(default_factory=list, description="NCCL's.")
    all_to_all: list[CollectiveCurve] = Field(default_factory=list, description="NCCL's.")


class LawsSpec(Strict):
    """Laws of one accelerator and engine. Formats that have none take the profile's roofline terms, with a warning."""

    accelerator: str = Field(min_length=1, description="Whose measurements: the name of an Accelerator.")
    engine: EngineName = Field(description="Whose kernels.")
    engine_version: str = Field(min_length=1, description="Of which version.")
    multiprocessors: Count = Field(description="Of the accelerator.")
    memory_bandwidth_bytes_per_s: Positive = Field(description="Of its sheet; tells it from other accelerators.")
    in_band_ecc: bool | None = Field(
        None, description="As its Accelerator says: whether its memory moved check bits too; unknown where absent."
    )
    flops: Positive = Field(description="16-bit peak of its sheet; likewise.")
    clock_share: Annotated[float, Field(ge=0.75, le=1)] = Field(
        SUSTAINED_CLOCK,
        description="Share of the clock of these measurements, of a kernel alone for milliseconds, that a server's "
        "steps hold. It slows arithmetic, not memory. 0.75 to 1.",
    )
    gemm: dict[str, GemmTerms] = Field(
        description="By format of the weights: bf16, fp8 (a scale per tensor or channel), fp8_block (per 128 x 128) …"
    )
    former_gemm: dict[str, dict[str, GemmTerms]] = Field(
        default_factory=dict,
        description="Of engine versions before each of these, with other kernels for products, for `validate silicon`.",
    )
    quantise: QuantiseTerms | None = Field(
        None,
        description="Before products in fp8 whose activations come in 16 bits; none where norms and activation "
        "functions write fp8.",
    )
    former_quantise: dict[str, QuantiseTerms] = Field(
        default_factory=dict,
        description="Of engine versions before each of these, which had such passes. Compiled engines (TensorRT-LLM 0) "
        "have none: their checkpoints state the scales.",
    )
    prefill_attention: dict[str, PrefillTerms] = Field(description="By format of the KV cache.")
    decode_attention: dict[str, DecodeTerms] = Field(description="By format of the KV cache.")
    other_heads: list[HeadLaws] = Field(
        default_factory=list,
        description="Of models with `window_heads` alone, for layers of such a width, with or without a window.",
    )
    mixed_attention: MixedTerms | None = Field(
        None, description="Of decodes in steps with prompts; where absent they take what they do by themselves."
    )
    mla_prefill: dict[str, PrefillTerms] = Field(default_factory=dict, description="By format of the KV cache.")
    mla_decode: dict[str, DecodeTerms] = Field(default_factory=dict, description="By format of the KV cache.")
    sparse_attention: dict[str, SparseTerms] = Field(default_factory=dict, description="By format of the KV cache.")
    entries_attention: dict[Literal["compressed", "block_sparse"], dict[str, EntriesTerms]] = Field(
        default_factory=dict,
        description="Of DeepSeek-V4's compressed attention and of MiniMax-M3's blocks, by format of the KV cache.",
    )
    former_sparse: dict[str, dict[str, SparseTerms]] = Field(
        default_factory=dict,
        description="Of engine versions before each of these, with other sparse attention, for `validate silicon`.",
    )
    moe: dict[str, MoeTerms] = Field(default_factory=dict, description="By format of the weights.")
    former_moe: dict[str, dict[str, MoeTerms]] = Field(
        default_factory=dict,
        description="Of engine versions before each of these, whose experts had other kernels, for `validate silicon`.",
    )
    linear_attention: dict[str, LinearTerms] = Field(default_factory=dict, description="By format of the activations.")
    kda: dict[str, LinearTerms] = Field(
        default_factory=dict, description="Kimi Delta Attention, without its convolution; likewise."
    )
    linear_inputs: Literal[2, 4] = Field(
        2,
        description="Products that make the inputs of linear attention: one of queries, keys, values and gates and one "
        "of the scalars of a head, or two of each.",
    )
    collectives: CollectiveCurves | None = Field(None, description="None where a host has one accelerator.")
    former_all_reduce: dict[str, list[CollectiveCurve]] = Field(
        default_factory=dict,
        description="Of engine versions before each of these, whose all-reduce was another, for `validate silicon`.",
    )
    fused_all_reduce: list[CollectiveCurve] = Field(
        default_factory=list,
        description="Of the kernel that `fused_all_reduce` asks for; the engine's own stands for it where absent.",
    )
    expert_exchange: dict[str, list[CollectiveCurve]] = Field(
        default_factory=dict,
        description="Sending tokens to the ranks of their experts and back, by format of the experts' weights, where "
        "attention groups share nothing else. `payload_bytes`: of a rank's tokens in 16 bits, a copy for each expert.",
    )

    def of_version(self, version: str) -> LawsSpec:
        """The laws with the kernels of the engine's ``version``."""
        update: dict[str, object] = {}
        before, inputs = FORMER_LINEAR_INPUTS.get(self.engine, ("", 0))
        if inputs and precedes(version, before):
            update["linear_inputs"] = inputs
        if (products := _former(self.former_gemm, version)) is not None:
            update["gemm"] = self.gemm | products
        if (passes := _former(self.former_quantise, version)) is not None and not compiles_engine(self.engine, version):
            update["quantise"] = passes
        if (sparse := _former(self.former_sparse, version)) is not None:
            update["sparse_attention"] = self.sparse_attention | sparse
        if (experts := _former(self.former_moe, version)) is not None:
            update["moe"] = self.moe | experts
        if self.collectives is not None and (curves := _former(self.former_all_reduce, version)) is not None:
            update["collectives"] = self.collectives.model_copy(update={"all_reduce": curves})
        return self.model_copy(update=update)


def _former(by_version: dict[str, _Laws], version: str) -> _Laws | None:
    """The entry of the earliest version that ``version`` precedes, if any."""
    later = [name for name in by_version if precedes(version, name)]
    return by_version[min(later, key=version_key)] if later else None
