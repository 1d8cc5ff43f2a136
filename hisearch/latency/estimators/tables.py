"""Measured tables: operators that a profiler timed on this accelerator, composed as the engine runs them.

Notation (per layer and rank; T tokens of a step padded to the next CUDA graph, T+ those of all attention groups)
    token_s[T] = layers * (sum over token-wise operators of calls * table(T)) + embedding + final norm
               + (2 * layers + 1) * all_reduce_s(2 bytes * h * T)            with more than one tensor-parallel rank
               + layers * eager_layer_s                                      beyond the largest CUDA graph
               + shared_s[T+]
    shared_s[T+] = MoE layers * (moe(tokens, experts) + 2 * gather_s(2 bytes * h * T+))
               tokens  = T+ * share of the experts that the rank holds, experts = distinct ones among them that are used
    sequence_s[S] = lm_head(S) + sampler(S) + gather_s(2 bytes * vocabulary * S)
    chunk rate, decode_s, mixed_decode_s, skew_s: layers * attention tables (``latency.costs``)

Several prompts of one step are priced at their total length: that many tokens fill the accelerator, while each attends
to its own context. Energy is the roofline's (``workers.roofline.energy_costs``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.hardware.collectives import all_gather_volume, all_reduce_volume
from hisearch.latency.costs import CompiledCosts, LockstepCosts, StepCosts
from hisearch.latency.estimator import ProfileEstimator, register
from hisearch.latency.expert_load import with_uneven_experts
from hisearch.latency.host import with_overhead
from hisearch.latency.measured.operator_tables import (
    DENSE_FFN,
    LAYER_CALLS,
    MODEL_CALLS,
    OperatorTables,
    by_sequences,
    read_tables,
    table_hardware,
    table_meta,
)
from hisearch.latency.operators import ACTIVATION_BYTES, active_experts
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Shard, dense_layers, moe_layers, shard
from hisearch.latency.sheets import accelerators, called, of_catalogue, same_sheet
from hisearch.latency.tabulate import counted, device_costs, table_axes
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.profile import CollectiveTerms, LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec


@dataclass(frozen=True)
class TablesWorker:
    """One attention group of a worker; methods take arrays and return seconds."""

    model: ModelSpec
    part: Shard
    tables: OperatorTables
    overhead: EngineOverhead
    all_reduce: CollectiveTerms
    gather: CollectiveTerms
    link_bytes_per_s: float

    def token_s(self, tokens: F8) -> F8:
        """Token-wise operators of a step of ``tokens`` (at least 1) tokens in each group."""
        return self.own_s(tokens) + self.shared_s(self._padded(tokens) * self.part.parallelism.attention_data)

    def own_s(self, tokens: F8) -> F8:
        """Token-wise operators of a single group: all but routed experts."""
        padded, layers, dense = self._padded(tokens), self.model.layers, dense_layers(self.model)
        total = np.zeros_like(padded)
        for name, curve in self.tables.dense.items():
            if name in MODEL_CALLS:
                total += curve(padded)
            else:
                total += LAYER_CALLS[name] * (dense if name in DENSE_FFN else layers) * curve(padded)
        payload = ACTIVATION_BYTES * self.model.hidden_size * padded
        ranks = self.part.parallelism.tensor
        total += (2 * layers + 1) * self._collective(all_reduce_volume(1.0, ranks) * payload, ranks, self.all_reduce)
        if self.overhead.graph_batches:
            total += np.where(tokens > self.overhead.graph_batches[-1], layers * self.overhead.eager_layer_s, 0.0)
        return total

    def shared_s(self, tokens: F8) -> F8:
        """Routed experts, and the gather and scatter of tokens, for ``tokens`` of all groups together."""
        if self.model.moe is None or not moe_layers(self.model):
            return np.zeros_like(tokens)
        layer = self._layer_experts_s(tokens)
        groups = self.part.parallelism.attention_data
        payload = ACTIVATION_BYTES * self.model.hidden_size * tokens
        layer += 2 * self._collective(all_gather_volume(1.0, groups) * payload, groups, self.gather)
        return np.asarray(moe_layers(self.model) * layer)

    def routed_s(self, tokens: F8) -> F8:
        """Routed experts alone, for ``tokens`` of each group."""
        groups = self.part.parallelism.attention_data
        return np.asarray(moe_layers(self.model) * self._layer_experts_s(tokens * groups))

    def _layer_experts_s(self, tokens: F8) -> F8:
        moe = self.model.moe
        assert moe is not None
        assert self.tables.moe is not None
        held = self.part.experts / moe.experts
        used = held * active_experts(moe.experts, moe.experts_per_token, tokens)
        return self.tables.moe(np.maximum(tokens * held, 1.0), used)

    def sequence_s(self, sequences: F8) -> F8:
        """LM head, sampling and the logits' all-gather for ``sequences`` (at least 1) sequences."""
        ranks = self.part.parallelism.tensor
        payload = ACTIVATION_BYTES * self.model.vocab_size * sequences
        total = self.tables.per_sequence["lm_head"](sequences) + self.tables.per_sequence["sampler"](sequences)
        return total + self._collective(all_gather_volume(1.0, ranks) * payload, ranks, self.gather)

    def tabulate(self, max_tokens: int, max_sequences: int, max_context: int) -> StepCosts:
        """All of the above, and attention, on the knots of ``StepCosts``."""
        layers, attention = self.model.layers, self.tables.attention
        axes = table_axes(max_tokens, max_sequences, max_context, self.model.max_context_tokens)
        mean = np.maximum(axes.context / axes.sequences - 1.0, 0.0)
        skew = by_sequences(attention.skew, max_sequences)
        return device_costs(
            axes,
            token_s=counted(self.token_s, max_tokens),
            sequence_s=counted(self.sequence_s, max_sequences),
            chunk_s=layers * attention.prefill(axes.new, axes.cached),
            decode_s=layers * attention.decode(axes.sequences, mean),
            mixed_decode_s=None if attention.mixed is None else layers * attention.mixed.values,
            skew_s=None if skew is None else layers * skew,
            late=attention.late,
        )

    def _padded(self, tokens: F8) -> F8:
        graphs = np.array(self.overhead.graph_batches, dtype=np.float64)
        if not len(graphs):
            return tokens
        at = np.searchsorted(graphs, tokens)
        return np.asarray(np.where(at < len(graphs), graphs[np.minimum(at, len(graphs) - 1)], tokens))

    def _collective(self, volume_bytes: F8, ranks: int, terms: CollectiveTerms) -> F8:
        if ranks == 1:
            return np.zeros_like(volume_bytes)
        return np.asarray(terms.alpha_s + volume_bytes / (self.link_bytes_per_s * terms.bandwidth))


@register("tables")
class TablesEstimator(ProfileEstimator):
    """Compiles a worker to step-cost tables from the measured tables of one LatencyProfile."""

    def __init__(self, profile_name: str, profile: LatencyProfileSpec) -> None:
        if profile.operators is None:
            raise ValueError(f"profile {profile_name}: estimator tables needs operators, a folder of measured tables")
        super().__init__(profile_name, profile)
        self.folder = Path(profile.operators)

    def worker(self, priced: PricedWorker) -> TablesWorker:
        """The worker's operators, not yet tabulated.

        Raises:
            InvalidParallelism: the model cannot be split so.
            ValueError: a table is missing, or the split has pipelines or experts split in width, or the model has
                states of Kimi Delta Attention or Mamba-2, which none measures.
        """
        model, split = priced.model, priced.split
        part = shard(model, split)
        linear = model.linear_attention
        if linear is not None and linear.kind != "gated_delta":
            raise ValueError(f"profile {self.profile_name}: measured tables price no states of {model.huggingface_id}")
        if split.pipeline > 1:
            raise ValueError(f"profile {self.profile_name}: measured tables price no pipelines")
        overhead = self.overhead(priced)
        tables = read_tables(self.folder, split.tensor)
        if moe_layers(model) and tables.moe is None:
            raise ValueError(f"{self.folder}: no moe.csv for the experts of {model.huggingface_id} at tp{split.tensor}")
        if dense_layers(model):
            missing = [name for name in DENSE_FFN if name not in tables.dense]
            if missing:
                raise ValueError(f"{self.folder}: dense.csv lacks {', '.join(missing)} of {model.huggingface_id}")
        return TablesWorker(
            model,
            part,
            tables,
            overhead,
            self.profile.all_reduce,
            self.profile.gather or self.profile.all_reduce,
            priced.accelerator.peer_link.bandwidth_bytes_per_s,
        )

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """See ``LatencyEstimator.compile``."""
        split, worker = priced.split, self.worker(priced)
        seconds = with_overhead(worker.tabulate(*priced.limits), worker.overhead, priced)
        lockstep = None
        if split.attention_data > 1:
            lockstep = LockstepCosts(
                counted(worker.own_s, priced.max_tokens),
                counted(lambda tokens: worker.shared_s(tokens * split.attention_data), priced.max_tokens),
                tuple(worker.overhead.graph_batches),
            )
        warnings = _warnings(worker, priced.accelerator, priced.max_tokens, priced.max_sequences)
        costs = self.costs(priced, seconds, lockstep=lockstep, warnings=warnings)
        return with_uneven_experts(costs, priced.engine.experts, priced.model, split, worker.routed_s)


def _of_another(hardware: str, accelerator: AcceleratorSpec) -> list[str]:
    """Warnings where tables are not of ``accelerator``, or may not be."""
    if not hardware:
        return []
    name = called(hardware, accelerators())
    if name is None:
        return [f"operator tables of '{hardware}', which is no accelerator of the catalogue: not held against this one"]
    if same_sheet(of_catalogue("Accelerator", name), accelerator):
        return []
    return [f"operator tables of {name}, used for another accelerator"]


def _warnings(
    worker: TablesWorker, accelerator: AcceleratorSpec, max_tokens: int, max_sequences: int
) -> tuple[str, ...]:
    """Warnings of loads beyond the tables, or of tables of another model or accelerator (law L8)."""
    tables, warnings = worker.tables, []
    measured = str(table_meta(tables.folder).get("model") or worker.model.huggingface_id)
    # Variants of a model extend its name; their operators are the same.
    if not worker.model.huggingface_id.lower().startswith(measured.lower()):
        warnings.append(f"operator tables of {measured}, used for {worker.model.huggingface_id}")
    warnings += _of_another(table_hardware(table_meta(tables.folder)), accelerator)
    tokens = min(curve.x[-1] for curve in tables.dense.values())
    if max_tokens > tokens:
        warnings.append(
            f"steps of more than {tokens:,.0f} tokens: beyond the measured tables, continued with their slope"
        )
    sequences = tables.attention.decode.axes[0][-1]
    if max_sequences > sequences:
        warnings.append(f"more than {sequences:,.0f} decodes: beyond the measured tables, continued with their slope")
    return tuple(warnings)
