"""Stages of a worker's mean layer, and of its LM head: what each of its devices and links does, one after another.

Notation
    Load        T tokens of a step: P prompt tokens behind K computed ones (one chunk), and n decodes of c tokens
    layer       the mean layer: the cost of all layers, divided by their number
    stages      the phases of a layer in order, each on a device or a link

    projections (before attention) -> prefill attention, decode attention -> projections (after) -> FFN, experts

Norms, rotary embedding, collectives and sampling stay on the accelerator; activation functions run with their FFN.
When a phase runs on another device than the one before, its operands cross the link between them: queries, outputs and
new KV for attention, hidden states for the others. KV on another device than its attention crosses too, overlapped with
the attention: the longer of the two counts. A transfer takes latency + bytes / bandwidth, of the narrowest of the link
and the memories at its ends. Where PIM leaves softmax to the accelerator, scores and probabilities cross the link.
Decode attention that was measured on it has its softmax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.devices.afd import FFN, Afd
from hisearch.latency.devices.build import Device, DevicesRefused
from hisearch.latency.devices.collectives import CollectiveLaw
from hisearch.latency.devices.experts import ExpertLoads
from hisearch.latency.devices.flow import Stage
from hisearch.latency.devices.work import (
    SOFTMAX,
    AttentionHeads,
    Load,
    Measure,
    Work,
    decode_work,
    operator_work,
    prefill_work,
    softmax_work,
)
from hisearch.latency.operators import ACTIVATION_BYTES, AttentionShape, Operator
from hisearch.latency.parameters import Matrix
from hisearch.latency.sharding import expert_hidden
from hisearch.specs.base import DType
from hisearch.specs.machines.devices import ACCELERATOR, DevicesSpec, OperatorName
from hisearch.specs.machines.hardware import LinkSpec
from hisearch.specs.models.model import ModelSpec

ProductFamily = OperatorName | Literal["elementwise"]

#: Name of the accelerator's slot in stations.
SLOT = "slot"

#: Products of attention that come after it; the others come before.
AFTER_ATTENTION = frozenset({"o_proj", "linear_out_proj", "latent_down_proj", "latent_up_proj"})


@dataclass(frozen=True)
class Product:
    """A weight matrix's product, or (matrix None) an elementwise operator, of one family.

    token_scale: units of the operator for each token of the step.
    """

    family: ProductFamily
    op: Operator
    matrix: Matrix | None
    token_scale: float = 1.0


@dataclass(frozen=True)
class DeviceLayer:
    """One rank's operators on their devices, layer by layer.

    map: family -> device. kv: device of the KV cache. links: by the two names that they join; in_slot: those that pass
    the accelerator's slot.
    collectives: of all layers, the embedding and the logits, by tokens.
    streamed: for each entry, (layers, bytes of a layer, device).
    afd: attention-FFN disaggregation; None: without.
    ffn_bytes_per_rank: weights that an attention rank would hold without it.
    """

    model: ModelSpec
    spec: DevicesSpec
    devices: Mapping[str, Device]
    map: Mapping[OperatorName, str]
    kv: str
    links: Mapping[frozenset[str], LinkSpec]
    in_slot: frozenset[frozenset[str]]
    products: tuple[Product, ...]
    sequence_products: tuple[Product, ...]
    attention: AttentionShape
    heads: AttentionHeads
    attention_dtype: DType
    collectives: CollectiveLaw
    streamed: tuple[tuple[int, float, str], ...] = ()
    expert_loads: ExpertLoads | None = None
    afd: Afd | None = None
    ffn_bytes_per_rank: float = 0.0

    def stages(self, load: Load, measure: Measure = "seconds") -> list[Stage]:
        """The mean layer's stages."""
        stages: list[Stage] = []
        origin = self.map["projections"]
        layers = float(self.model.layers)
        stages += self._products(load, "projections", measure, after=False)
        stages += self._collectives(self.collectives.layer(load.tokens, measure), measure)
        stages.append(self._elementwise(load, measure))
        prefill = np.asarray(self._prefill(load, measure) / layers)
        decode = np.asarray(self._decode(load, measure) / layers)
        shape = self.attention
        half_prompt = load.prompt * shape.prefill_query_bytes / 2.0
        half_decode = load.sequences * shape.decode_query_bytes / 2.0
        fresh = shape.kv_bytes_per_token
        share = (shape.full_layers + shape.window_layers) / layers
        stages += self._move(origin, self.kv, (load.prompt + load.sequences) * fresh * share, measure)
        attention: tuple[tuple[OperatorName, F8, F8, F8], ...] = (
            ("prefill_attention", half_prompt, prefill, load.before * np.minimum(load.prompt, 1.0)),
            ("decode_attention", half_decode, decode, load.context),
        )
        for name, half, cost, read in attention:
            device = self.map[name]
            stages += self._move(origin, device, half * share, measure)
            stages.append(self._reading(name, cost, read * fresh * share, measure))
            stages += self._read_joules(device, read * fresh * share, measure)
            if name == "decode_attention":
                stages += self._softmax(device, load, share, measure)
            stages += self._move(device, origin, half * share, measure)
        stages += self._products(load, "projections", measure, after=True)
        stages += self._ffns(load, measure)
        return [stage for stage in stages if np.any(stage.seconds)]

    def _ffns(self, load: Load, measure: Measure) -> list[Stage]:
        """Stages of the mean layer's FFN and experts, with transfers to their device and back."""
        stages: list[Stage] = []
        origin = self.map["projections"]
        families: tuple[OperatorName, ...] = ("ffn", "experts")
        for family in families:
            ops = [product.op for product in self.products if product.family == family]
            if not ops:
                continue
            share = max(op.layers for op in ops) / self.model.layers
            if self.afd is not None:
                stages += self._afd(self.afd, load, family, share, measure)
                continue
            # A rank's part of a FFN sees the tokens of all groups; its experts see those that chose them.
            tokens = load.tokens * max(op.token_groups for op in ops) * self._reached(family)
            width = expert_hidden(self.model) if family == "experts" else self.model.hidden_size
            moved = share * tokens * width * ACTIVATION_BYTES
            stages += self._move(origin, self.map[family], moved, measure)
            stages += self._products(load, family, measure)
            stages += self._move(self.map[family], origin, moved, measure)
        return stages

    def _reached(self, family: OperatorName) -> float:
        """Share of the tokens that choose an expert of a rank's set, choices are even; 1 for a dense FFN."""
        sets, moe = self.collectives.split.expert, self.model.moe
        if family != "experts" or moe is None:
            return 1.0
        return float(1.0 - (1.0 - 1.0 / sets) ** moe.experts_per_token)

    def _afd(self, afd: Afd, load: Load, family: OperatorName, share: float, measure: Measure) -> list[Stage]:
        """FFN or experts on separate accelerators; ``share`` of the layers have them."""
        products, routed = self._products(load, family, measure), family == "experts"
        if measure == "joules":
            moved = share * afd.moved_bytes(load.tokens, routed)
            return [*products, Stage("link", moved * self.devices[FFN].link_j_per_byte)]
        around = [f(load.tokens, routed) for f in (afd.there, afd.reduced, afd.back)]
        to_ffn, reduced, from_ffn = (stage._replace(seconds=share * stage.seconds) for stage in around)
        return [to_ffn, *products, reduced, from_ffn]

    def link_station(self, source: str, target: str) -> str:
        """Name of one direction of a link, which works apart from the other; several links through a slot share it."""
        ends = (source, target)
        if len(self.in_slot) > 1 and frozenset(ends) in self.in_slot:
            source, target = (name if name == ACCELERATOR else SLOT for name in ends)
        return f"link {source} {target}"

    def transfer_s(self, source: str, target: str, moved_bytes: F8) -> F8:
        """Seconds of moving bytes between two devices, 0 for none.

        Raises:
            DevicesRefused: no link joins them.
        """
        link, ends = self.link(source, target), (self.devices[source], self.devices[target])
        bytes_per_s = min(link.bandwidth_bytes_per_s, *(device.memory_bytes_per_s for device in ends))
        return np.asarray(np.where(moved_bytes > 0, link.latency_s + moved_bytes / bytes_per_s, 0.0))

    def link_j_per_byte(self, source: str, target: str) -> float:
        """Joules of a byte between two devices: the link's where it states them, else those of the dearer end."""
        stated = self.link(source, target).energy_j_per_byte
        return stated or max(self.devices[source].link_j_per_byte, self.devices[target].link_j_per_byte)

    def link(self, source: str, target: str) -> LinkSpec:
        """The link between two devices.

        Raises:
            DevicesRefused: there is none; the message names the operators on either side.
        """
        link = self.links.get(frozenset((source, target)))
        if link is None:
            sides = [
                f"{name} ({', '.join(op for op in self.map if self.map[op] == name) or 'memory'})"
                for name in (source, target)
            ]
            raise DevicesRefused("links", f"no link between {' and '.join(sides)}")
        return link

    def sequence_stages(self, sequences: F8, measure: Measure) -> list[Stage]:
        """Stages of LM head, sampling, and the logits' all-gather."""
        stages: list[Stage] = []
        for product in self.sequence_products:
            name = self.map["lm_head"] if product.family == "lm_head" else ACCELERATOR
            cost = product.op.layers * self._cost(name, operator_work(product.op, product.matrix, sequences), measure)
            stages.append(Stage(name, cost, product.op.name))
        head_device = self.map["lm_head"]
        hidden = sequences * self.model.hidden_size * ACTIVATION_BYTES
        logits = sequences * self.model.vocab_size * ACTIVATION_BYTES
        stages += self._move(ACCELERATOR, head_device, hidden, measure)
        stages += self._move(head_device, ACCELERATOR, logits, measure)
        return [*stages, *self._collectives(self.collectives.logits(sequences, measure), measure)]

    def _collectives(self, cost: F8, measure: Measure) -> list[Stage]:
        """Collectives keep the accelerator busy; their joules are the network's links', where there is a network."""
        if measure == "seconds":
            return [Stage(ACCELERATOR, cost, "collectives")]
        return [Stage("link", cost, "collectives")] if self.collectives.network is not None else []

    def _products(self, load: Load, family: OperatorName, measure: Measure, after: bool | None = None) -> list[Stage]:
        """Stages of a family's products in the mean layer; ``after``: only those after (False: before) attention."""
        name = self.map[family]
        stages: list[Stage] = []
        total = np.zeros(np.shape(load.tokens))
        for product in self.products:
            if product.family != family or (after is not None and after != (product.op.name in AFTER_ATTENTION)):
                continue
            share = product.op.layers / self.model.layers
            if product.op.routed and self.expert_loads is not None:
                stages += self._expert_stages(product, load, share, measure)
            else:
                work = operator_work(product.op, product.matrix, load.tokens * product.token_scale)
                total = total + share * self._cost(name, work, measure)
        return [Stage(name, total, family), *stages]

    def _expert_stages(self, product: Product, load: Load, share: float, measure: Measure) -> list[Stage]:
        """A routed product with stated routing, placement and offloading."""
        assert self.expert_loads is not None
        assert product.matrix is not None
        device, loads = self.map["experts"], self.expert_loads
        costs = [
            (name, share * self._cost(name, work, measure))
            for name, work in loads.works(product.op, product.matrix, load.tokens * product.token_scale, device)
        ]
        stages = [Stage(name, cost, product.family) for name, cost in costs]
        if len(costs) == 2:
            stages = self._offloaded_experts(product, load, share, costs, measure)
        fetched = loads.fetched_bytes(product.op, load.tokens * product.token_scale)
        if fetched is not None:
            source, now, ahead = fetched
            if measure == "joules":
                stages.append(Stage("link", share * (now + ahead) * self.link_j_per_byte(source, device)))
            else:
                stages.append(Stage(self.link_station(source, device), share * self.transfer_s(source, device, now)))
        return stages

    def _offloaded_experts(
        self, product: Product, load: Load, share: float, costs: list[tuple[str, F8]], measure: Measure
    ) -> list[Stage]:
        """Experts on the accelerator and on another device in parallel; hidden states go there and back."""
        assert self.expert_loads is not None
        (device, resident), (offload_device, offloaded) = costs
        moved = self.expert_loads.moved_tokens(load.tokens * product.op.token_groups)
        moved = share * moved * expert_hidden(self.model) * ACTIVATION_BYTES
        transfers = self._move(device, offload_device, moved, measure)
        if measure == "joules":
            return [
                Stage(device, resident, product.family),
                Stage(offload_device, offloaded, product.family),
                *transfers,
            ]
        return [
            Stage(
                device,
                np.maximum(resident, offloaded + sum(stage.seconds for stage in transfers)),
                product.family,
                ((offload_device, offloaded), *((stage.station, stage.seconds) for stage in transfers)),
            )
        ]

    def _elementwise(self, load: Load, measure: Measure) -> Stage:
        total = np.zeros(np.shape(load.tokens))
        for product in self.products:
            if product.family == "elementwise":
                share = product.op.layers / self.model.layers
                total = total + share * self._cost(ACCELERATOR, operator_work(product.op, None, load.tokens), measure)
        return Stage(ACCELERATOR, total, "elementwise")

    def _prefill(self, load: Load, measure: Measure) -> F8:
        """Prompt attention of all layers; 0 without a prompt."""
        shape, name = self.attention, self.map["prefill_attention"]
        new = np.maximum(load.prompt, 1e-3)
        total = np.zeros(np.shape(load.tokens))
        for layers, window in ((shape.full_layers, None), (shape.window_layers, float(shape.window_tokens))):
            if layers:
                work = prefill_work(shape, self.heads, self.attention_dtype, new, load.before, window)
                total = total + layers * self._cost(name, work, measure)
        return np.where(load.prompt > 0, total, 0.0)

    def _decode(self, load: Load, measure: Measure) -> F8:
        """Decode attention of all layers; 0 without decodes."""
        shape, name = self.attention, self.map["decode_attention"]
        total = np.zeros(np.shape(load.tokens))
        windowed = np.minimum(load.context, load.sequences * float(shape.window_tokens))
        # By request, the mean request's attention runs so many times.
        times = np.maximum(load.sequences, 1.0) if self.spec.attention == "by_request" else np.ones(())
        for layers, context in ((shape.full_layers, load.context), (shape.window_layers, windowed)):
            if layers:
                each = (load.sequences / times, context / times)
                work = decode_work(shape, self.heads, self.attention_dtype, *each)
                total = total + layers * times * self._cost(name, work, measure)
        return np.where(load.sequences > 0, total, 0.0)

    def _reading(self, name: OperatorName, cost: F8, kv_bytes: F8, measure: Measure) -> Stage:
        """Attention on its device, waiting for KV on another device."""
        device = self.map[name]
        if measure == "joules" or device == self.kv:
            return Stage(device, cost, name)
        read_s = self.transfer_s(self.kv, device, kv_bytes)
        return Stage(device, np.maximum(cost, read_s), name, ((self.link_station(self.kv, device), read_s),))

    def _softmax(self, device: str, load: Load, share: float, measure: Measure) -> list[Stage]:
        """Softmax of decodes whose scores PIM makes: by its own units, or on the accelerator and back."""
        scores_per_s = self.devices[device].softmax_scores_per_s
        if not self.devices[device].leaves_scores:
            return []
        shape = self.attention
        windowed = np.minimum(load.context, load.sequences * float(shape.window_tokens))
        context = (shape.full_layers * load.context + shape.window_layers * windowed) / self.model.layers
        scores = context * self.heads.kv_heads * self.heads.queries
        if scores_per_s is not None:
            return [Stage(device, scores / scores_per_s, SOFTMAX)] if measure == "seconds" else []
        moved = scores * ACTIVATION_BYTES
        layers = np.where(load.sequences > 0, share, 0.0)
        normalised = layers * self._cost(ACCELERATOR, softmax_work(scores / max(share, 1e-9)), measure)
        return [
            *self._move(device, ACCELERATOR, moved, measure),
            Stage(ACCELERATOR, normalised, SOFTMAX),
            *self._move(ACCELERATOR, device, moved, measure),
        ]

    def _read_joules(self, device: str, kv_bytes: F8, measure: Measure) -> list[Stage]:
        return self._move(self.kv, device, kv_bytes, measure) if measure == "joules" else []

    def _move(self, source: str, target: str, moved_bytes: F8, measure: Measure) -> list[Stage]:
        if source == target:
            return []
        if measure == "joules":
            return [Stage("link", moved_bytes * self.link_j_per_byte(source, target))]
        return [Stage(self.link_station(source, target), self.transfer_s(source, target, moved_bytes))]

    def _cost(self, name: str, work: Work, measure: Measure) -> F8:
        device = self.devices[name]
        law = device.seconds if measure == "seconds" else device.joules
        assert law is not None
        return law.cost(work)
