"""A worker of several devices: what a step takes, phase by phase.

Notation
    Load        T tokens of a step, of which P prompt tokens behind K computed ones (one chunk), n decodes of c tokens
    layer       the mean layer: what all layers take, divided by their number
    stages      the phases of a layer in order, each on a device or a link

    projections (before attention) -> prefill attention, decode attention -> projections (after) -> FFN, experts

Norms, rotary embedding, collectives and sampling stay on the accelerator; activation functions go with their FFN.
A phase on another device than the one before it moves its operands over the link between the two: queries, outputs and
new KV for attention, hidden states for the others; KV that lies elsewhere than it is read crosses too, beside the
attention that reads it, so that the longer of the two counts. A transfer takes latency + bytes / bandwidth.

Schedules: serial adds the stages; interleaved has two halves of the batch side by side (``flow``); best takes the
faster of the two for each load. Streamed layers take the longer of the layer and of reading its weights, and so do
layers whose experts are fetched ahead.
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
from hisearch.latency.devices.flow import Stage, overlapped_s, serial_s
from hisearch.latency.devices.work import AttentionHeads, Load, Work, decode_work, operator_work, prefill_work
from hisearch.latency.operators import ACTIVATION_BYTES, AttentionShape, Operator
from hisearch.latency.parameters import Matrix
from hisearch.specs.base import DType
from hisearch.specs.machines.devices import ACCELERATOR, DevicesSpec, OperatorName
from hisearch.specs.machines.hardware import LinkSpec
from hisearch.specs.models.model import ModelSpec

Measure = Literal["seconds", "joules"]
ProductFamily = OperatorName | Literal["elementwise"]

#: Products of attention that come after it; the others come before.
AFTER_ATTENTION = frozenset({"o_proj", "linear_out_proj"})


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
class DeviceWorker:
    """One rank's operators on their devices.

    map: family -> device. kv: where the KV cache lies. links: by the two names that they join.
    collectives: seconds of the collectives and embedding of all layers, by tokens; None for none.
    streamed: for each entry, (layers, bytes of a layer, device).
    afd: attention and FFN apart; ffn_bytes_per_rank: of weights that an attention rank would hold otherwise.
    """

    model: ModelSpec
    spec: DevicesSpec
    devices: Mapping[str, Device]
    map: Mapping[OperatorName, str]
    kv: str
    links: Mapping[frozenset[str], LinkSpec]
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

    @property
    def joint(self) -> bool:
        """Whether what prompts and decodes of a step take depends on one another."""
        foreseen = self.expert_loads is not None and self.expert_loads.foresees
        return self.most_jobs > 1 or bool(self.streamed) or foreseen

    @property
    def most_jobs(self) -> int:
        """Parts of a batch that may be under way at once."""
        if self.afd is not None:
            return self.afd.spec.micro_batches
        return 1 if self.spec.schedule == "serial" else 2

    @property
    def components(self) -> list[str]:
        """Components of its energy: kinds of device, and link where something moves between devices."""
        kinds = list(dict.fromkeys(device.kind for device in self.devices.values()))
        return [*kinds, "link"] if len(self.devices) > 1 else kinds

    def ranks_of(self, component: str, ranks: int) -> float:
        """What one rank's joules of a component stand for, of a worker of ``ranks``."""
        return self.afd.share if self.afd is not None and component == FFN else float(ranks)

    def step(self, load: Load, measure: Measure = "seconds") -> F8:
        """Seconds or joules of all layers, without LM head and sampling."""
        if measure == "joules":
            return np.asarray(sum(self.step_joules(load).values(), start=np.zeros(())))
        serial = self._waited_s(self._serial_s(load), load)
        if self.most_jobs == 1:
            return serial
        overlapped = self._waited_s(self._overlapped_s(load), load)
        return np.minimum(serial, overlapped) if self.spec.schedule == "best" else overlapped

    def step_joules(self, load: Load) -> dict[str, F8]:
        """Joules above idle of one rank, by component: a kind of device, or link."""
        serial = self._joules(load, 1.0)
        if self.most_jobs == 1:
            return serial
        jobs = self._jobs(load)
        halves = {name: jobs * joules for name, joules in self._joules(load.part(jobs), jobs).items()}
        if self.spec.schedule != "best":
            return halves
        alone = self._waited_s(self._serial_s(load), load) <= self._waited_s(self._overlapped_s(load), load)
        return {name: np.where(alone, serial[name], halves[name]) for name in serial}

    def sequence(self, sequences: F8, measure: Measure = "seconds") -> F8:
        """LM head, sampling and the gathering of logits for ``sequences`` (at least 1)."""
        parts = self.sequence_stages(sequences, measure)
        return np.asarray(sum((stage.seconds for stage in parts), start=np.zeros(())))

    def sequence_joules(self, sequences: F8) -> dict[str, F8]:
        """Joules above idle of the same, by component."""
        return self._by_component(self.sequence_stages(sequences, "joules"), np.zeros_like(sequences))

    def stages(self, load: Load, measure: Measure = "seconds") -> list[Stage]:
        """The mean layer's stages."""
        found: list[Stage] = []
        home = self.map["projections"]
        layers = float(self.model.layers)
        found += self._products(load, "projections", measure, after=False)
        if measure == "seconds":
            found.append(Stage(ACCELERATOR, self.collectives.layer_s(load.tokens), "collectives"))
        found.append(self._elementwise(load, measure))
        prefill = np.asarray(self._prefill(load, measure) / layers)
        decode = np.asarray(self._decode(load, measure) / layers)
        shape = self.attention
        half_prompt = load.prompt * shape.prefill_query_bytes / 2.0
        half_decode = load.sequences * shape.decode_query_bytes / 2.0
        fresh = shape.kv_bytes_per_token
        share = (shape.full_layers + shape.window_layers) / layers
        found += self._move(home, self.kv, (load.prompt + load.sequences) * fresh * share, measure)
        attention: tuple[tuple[OperatorName, F8, F8, F8], ...] = (
            ("prefill_attention", half_prompt, prefill, load.before * np.minimum(load.prompt, 1.0)),
            ("decode_attention", half_decode, decode, load.context),
        )
        for name, half, own, read in attention:
            device = self.map[name]
            found += self._move(home, device, half * share, measure)
            found.append(self._reading(name, own, read * fresh * share, measure))
            found += self._read_joules(device, read * fresh * share, measure)
            found += self._move(device, home, half * share, measure)
        found += self._products(load, "projections", measure, after=True)
        found += self._ffns(load, measure)
        return [stage for stage in found if np.any(stage.seconds)]

    def shared_s(self, tokens: F8) -> F8:
        """Of ``step``, what the attention groups of a stage do together, for as many tokens in each of them."""
        stages = self._ffns(Load(tokens, *[np.zeros(np.shape(tokens))] * 4), "seconds")
        exchanged = self.model.layers * self.collectives.shared_layer_s(tokens)
        return np.asarray(serial_s(stages, self.model.layers) + exchanged)

    def _ffns(self, load: Load, measure: Measure) -> list[Stage]:
        """Stages of the mean layer's FFN and experts, with what moves to their device and back."""
        found: list[Stage] = []
        home = self.map["projections"]
        families: tuple[OperatorName, ...] = ("ffn", "experts")
        for family in families:
            ops = [product.op for product in self.products if product.family == family]
            if not ops:
                continue
            share = max(op.layers for op in ops) / self.model.layers
            if self.afd is not None:
                found += self._afd(self.afd, load, family, share, measure)
                continue
            # Tokens of all groups come together at a rank's part of a FFN; experts take those that chose them.
            tokens = load.tokens * max(op.token_groups for op in ops) * self._reached(family)
            moved = share * tokens * self.model.hidden_size * ACTIVATION_BYTES
            found += self._move(home, self.map[family], moved, measure)
            found += self._products(load, family, measure)
            found += self._move(self.map[family], home, moved, measure)
        return found

    def _reached(self, family: OperatorName) -> float:
        """Share of the tokens that choose an expert of a rank's set, choices being even; 1 of a dense FFN."""
        sets, moe = self.collectives.split.expert, self.model.moe
        if family != "experts" or moe is None:
            return 1.0
        return float(1.0 - (1.0 - 1.0 / sets) ** moe.experts_per_token)

    def _afd(self, afd: Afd, load: Load, family: OperatorName, share: float, measure: Measure) -> list[Stage]:
        """FFN or experts on accelerators of their own; ``share`` of the layers have them."""
        own, routed = self._products(load, family, measure), family == "experts"
        if measure == "joules":
            moved = share * afd.moved_bytes(load.tokens, routed)
            return [*own, Stage("link", moved * self.devices[FFN].link_j_per_byte)]
        around = [f(load.tokens, routed) for f in (afd.there, afd.reduced, afd.back)]
        there, reduced, back = (stage._replace(seconds=share * stage.seconds) for stage in around)
        return [there, *own, reduced, back]

    def transfer_s(self, one: str, other: str, moved_bytes: F8) -> F8:
        """Seconds of moving bytes between two devices, 0 for none.

        Raises:
            DevicesRefused: no link joins them.
        """
        link = self.link(one, other)
        return np.asarray(np.where(moved_bytes > 0, link.latency_s + moved_bytes / link.bandwidth_bytes_per_s, 0.0))

    def link(self, one: str, other: str) -> LinkSpec:
        """The link between two devices.

        Raises:
            DevicesRefused: there is none; the operators on either side are named.
        """
        found = self.links.get(frozenset((one, other)))
        if found is None:
            sides = [
                f"{name} ({', '.join(op for op in self.map if self.map[op] == name) or 'memory'})"
                for name in (one, other)
            ]
            raise DevicesRefused("links", f"no link between {' and '.join(sides)}")
        return found

    def _jobs(self, load: Load) -> F8:
        return np.clip(load.tokens, 1.0, float(self.most_jobs))

    def _serial_s(self, load: Load) -> F8:
        return serial_s(self.stages(load), self.model.layers) + self.collectives.embedding_s(load.tokens)

    def _overlapped_s(self, load: Load) -> F8:
        jobs = self._jobs(load)
        stages, parts = self.stages(load.part(jobs)), self.collectives.split.pipeline
        # A stage of the pipeline hands its batch on whole.
        passed = parts * overlapped_s(stages, self.model.layers / parts, jobs)
        return passed + self.collectives.embedding_s(load.tokens)

    def _waited_s(self, total: F8, load: Load) -> F8:
        """``total`` of all layers where some wait for weights that are read while the layer before them runs."""
        layer = total / self.model.layers
        for layers, moved, name in self.streamed:
            link = self.link(ACCELERATOR, name)
            wait = link.latency_s + moved / min(link.bandwidth_bytes_per_s, self.devices[name].memory_bytes_per_s)
            total = total + layers * np.maximum(wait - layer, 0.0)
        if self.expert_loads is None:
            return np.asarray(total)
        for product in self.products:
            fetched = self.expert_loads.fetched_bytes(product.op, load.tokens) if product.op.routed else None
            if fetched is not None:
                ahead_s = self.transfer_s(self.map["experts"], fetched[0], fetched[2])
                total = total + product.op.layers * np.maximum(ahead_s - layer, 0.0)
        return np.asarray(total)

    def _joules(self, load: Load, jobs: F8 | float) -> dict[str, F8]:
        """Of all layers for a load that is one of ``jobs``; streamed weights cross once a step."""
        found = self._by_component(self.stages(load, "joules"), np.zeros(np.shape(load.tokens)))
        found = {name: joules * self.model.layers for name, joules in found.items()}
        for layers, moved, name in self.streamed:
            found["link"] = found["link"] + layers * moved * self.devices[name].link_j_per_byte / jobs
        return found

    def _by_component(self, stages: list[Stage], zero: F8) -> dict[str, F8]:
        found = dict.fromkeys(self.components, zero)
        for stage in stages:
            name = self.devices[stage.station].kind if stage.station in self.devices else "link"
            found[name] = np.asarray(found[name] + stage.seconds)
        return found

    def sequence_stages(self, sequences: F8, measure: Measure) -> list[Stage]:
        """LM head, sampling, and the gathering of logits."""
        found: list[Stage] = []
        for product in self.sequence_products:
            name = self.map["lm_head"] if product.family == "lm_head" else ACCELERATOR
            cost = product.op.layers * self._cost(name, operator_work(product.op, product.matrix, sequences), measure)
            found.append(Stage(name, cost, product.op.name))
        there = self.map["lm_head"]
        hidden = sequences * self.model.hidden_size * ACTIVATION_BYTES
        logits = sequences * self.model.vocab_size * ACTIVATION_BYTES
        found += self._move(ACCELERATOR, there, hidden, measure)
        found += self._move(there, ACCELERATOR, logits, measure)
        if measure == "seconds":
            found.append(Stage(ACCELERATOR, self.collectives.logits_s(sequences), "collectives"))
        return found

    def _products(self, load: Load, family: OperatorName, measure: Measure, after: bool | None = None) -> list[Stage]:
        """Stages of a family's products in the mean layer; those before or after attention where ``after`` says."""
        name = self.map[family]
        found: list[Stage] = []
        total = np.zeros(np.shape(load.tokens))
        for product in self.products:
            if product.family != family or (after is not None and after != (product.op.name in AFTER_ATTENTION)):
                continue
            share = product.op.layers / self.model.layers
            if product.op.routed and self.expert_loads is not None:
                found += self._expert_stages(product, load, share, measure)
            else:
                work = operator_work(product.op, product.matrix, load.tokens * product.token_scale)
                total = total + share * self._cost(name, work, measure)
        return [Stage(name, total, family), *found]

    def _expert_stages(self, product: Product, load: Load, share: float, measure: Measure) -> list[Stage]:
        """A routed product where routing, placement and offloading are known."""
        assert self.expert_loads is not None
        assert product.matrix is not None
        here, loads = self.map["experts"], self.expert_loads
        costs = [
            (name, share * self._cost(name, work, measure))
            for name, work in loads.works(product.op, product.matrix, load.tokens * product.token_scale, here)
        ]
        found = [Stage(name, cost, product.family) for name, cost in costs]
        if len(costs) == 2:
            found = self._beside_experts(product, load, share, costs, measure)
        fetched = loads.fetched_bytes(product.op, load.tokens * product.token_scale)
        if fetched is not None:
            source, now, ahead = fetched
            if measure == "joules":
                found.append(Stage("link", share * (now + ahead) * self.devices[source].link_j_per_byte))
            else:
                found.append(Stage(f"link {here} {source}", share * self.transfer_s(here, source, now)))
        return found

    def _beside_experts(
        self, product: Product, load: Load, share: float, costs: list[tuple[str, F8]], measure: Measure
    ) -> list[Stage]:
        """Experts on the accelerator and on another device at the same time; hidden states go there and come back."""
        assert self.expert_loads is not None
        (here, own), (there, other) = costs
        moved = self.expert_loads.moved_tokens(load.tokens * product.op.token_groups)
        moved = share * moved * self.model.hidden_size * ACTIVATION_BYTES
        way = self._move(here, there, moved, measure)
        if measure == "joules":
            return [Stage(here, own, product.family), Stage(there, other, product.family), *way]
        return [Stage(here, np.maximum(own, other + sum(stage.seconds for stage in way)), product.family)]

    def _elementwise(self, load: Load, measure: Measure) -> Stage:
        total = np.zeros(np.shape(load.tokens))
        for product in self.products:
            if product.family == "elementwise":
                share = product.op.layers / self.model.layers
                total = total + share * self._cost(ACCELERATOR, operator_work(product.op, None, load.tokens), measure)
        return Stage(ACCELERATOR, total, "elementwise")

    def _prefill(self, load: Load, measure: Measure) -> F8:
        """Prompt attention of all layers; 0 where there is no prompt."""
        shape, name = self.attention, self.map["prefill_attention"]
        new = np.maximum(load.prompt, 1e-3)
        total = np.zeros(np.shape(load.tokens))
        for layers, window in ((shape.full_layers, None), (shape.window_layers, float(shape.window_tokens))):
            if layers:
                work = prefill_work(shape, self.heads, self.attention_dtype, new, load.before, window)
                total = total + layers * self._cost(name, work, measure)
        return np.where(load.prompt > 0, total, 0.0)

    def _decode(self, load: Load, measure: Measure) -> F8:
        """Attention of decodes of all layers; 0 where there are none."""
        shape, name = self.attention, self.map["decode_attention"]
        total = np.zeros(np.shape(load.tokens))
        windowed = np.minimum(load.context, load.sequences * float(shape.window_tokens))
        for layers, context in ((shape.full_layers, load.context), (shape.window_layers, windowed)):
            if layers:
                work = decode_work(shape, self.heads, self.attention_dtype, load.sequences, context)
                total = total + layers * self._cost(name, work, measure)
        return np.where(load.sequences > 0, total, 0.0)

    def _reading(self, name: OperatorName, own: F8, kv_bytes: F8, measure: Measure) -> Stage:
        """Attention on its device, which waits for KV that lies elsewhere."""
        device = self.map[name]
        if measure == "joules" or device == self.kv:
            return Stage(device, own, name)
        return Stage(device, np.maximum(own, self.transfer_s(self.kv, device, kv_bytes)), name)

    def _read_joules(self, device: str, kv_bytes: F8, measure: Measure) -> list[Stage]:
        return self._move(self.kv, device, kv_bytes, measure) if measure == "joules" else []

    def _move(self, one: str, other: str, moved_bytes: F8, measure: Measure) -> list[Stage]:
        if one == other:
            return []
        if measure == "joules":
            each = max(self.devices[one].link_j_per_byte, self.devices[other].link_j_per_byte)
            return [Stage("link", moved_bytes * each)]
        return [Stage(f"link {one} {other}", self.transfer_s(one, other, moved_bytes))]

    def _cost(self, name: str, work: Work, measure: Measure) -> F8:
        device = self.devices[name]
        law = device.seconds if measure == "seconds" else device.joules
        assert law is not None
        return law.cost(work)
