"""A worker of several devices: a step's cost, as the schedule overlaps the stages of its layers (``layer``).

Schedules: serial adds the stages; interleaved overlaps two halves of the batch (``flow``); best takes the faster of the
two for each load. A streamed layer takes the longer of its operators and of what its weights' link carries: those
weights, prefetched experts, and the layer's own transfers. So does a layer with prefetched experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.devices.afd import FFN
from hisearch.latency.devices.flow import Stage, overlapped_s, serial_s, station_seconds
from hisearch.latency.devices.layer import DeviceLayer
from hisearch.latency.devices.work import Load, Measure
from hisearch.specs.machines.devices import ACCELERATOR


@dataclass(frozen=True)
class DeviceWorker(DeviceLayer):
    """One rank's steps: its layers under the schedule of its devices."""

    @property
    def joint(self) -> bool:
        """Whether the costs of a step's prompts and decodes depend on each other."""
        foreseen = self.expert_loads is not None and self.expert_loads.foresees
        return self.most_jobs > 1 or bool(self.streamed) or foreseen

    @property
    def most_jobs(self) -> int:
        """Most micro-batches in flight at once."""
        if self.afd is not None:
            return self.afd.spec.micro_batches
        return 1 if self.spec.schedule == "serial" else 2

    @property
    def components(self) -> list[str]:
        """Components of its energy: kinds of device, and ``link`` with several devices or a network."""
        kinds = list(dict.fromkeys(device.kind for device in self.devices.values()))
        linked = len(self.devices) > 1 or self.collectives.network is not None
        return [*kinds, "link"] if linked else kinds

    def ranks_of(self, component: str, ranks: int) -> float:
        """Factor from one rank's joules of a component to a worker of ``ranks``."""
        return self.afd.share if self.afd is not None and component == FFN else float(ranks)

    def step(self, load: Load, measure: Measure = "seconds") -> F8:
        """Seconds or joules of all layers, without LM head and sampling."""
        if measure == "joules":
            return np.asarray(sum(self.step_joules(load).values(), start=np.zeros(())))
        serial = self._serial_s(load)
        if self.most_jobs == 1:
            return serial
        overlapped = self._overlapped_s(load)
        return np.minimum(serial, overlapped) if self.spec.schedule == "best" else overlapped

    def step_joules(self, load: Load) -> dict[str, F8]:
        """Joules above idle of one rank, by component: a kind of device, or ``link``."""
        serial = self._joules(load, 1.0)
        if self.most_jobs == 1:
            return serial
        jobs = self._jobs(load)
        halves = {name: jobs * joules for name, joules in self._joules(load.part(jobs), jobs).items()}
        if self.spec.schedule != "best":
            return halves
        alone = self._serial_s(load) <= self._overlapped_s(load)
        return {name: np.where(alone, serial[name], halves[name]) for name in serial}

    def sequence(self, sequences: F8, measure: Measure = "seconds") -> F8:
        """LM head, sampling and the logits' all-gather for ``sequences`` (at least 1)."""
        parts = self.sequence_stages(sequences, measure)
        return np.asarray(sum((stage.seconds for stage in parts), start=np.zeros(())))

    def sequence_joules(self, sequences: F8) -> dict[str, F8]:
        """Joules above idle of the same, by component."""
        return self._by_component(self.sequence_stages(sequences, "joules"), np.zeros_like(sequences))

    def shared_s(self, tokens: F8) -> F8:
        """The part of ``step`` that a stage's attention groups share; ``tokens``: of each group."""
        stages = self._ffns(Load(tokens, *[np.zeros(np.shape(tokens))] * 4), "seconds")
        exchanged = self.model.ffn_count * self.collectives.shared_layer(tokens)
        return np.asarray(serial_s(stages, self.model.layers) + exchanged)

    def _jobs(self, load: Load) -> F8:
        return np.clip(load.tokens, 1.0, float(self.most_jobs))

    def _serial_s(self, load: Load) -> F8:
        stages = self.stages(load)
        total = serial_s(stages, self.model.layers) + self.collectives.embedding(load.tokens)
        return self._waited_s(total, load, stages, 1.0)

    def _overlapped_s(self, load: Load) -> F8:
        jobs = self._jobs(load)
        stages, parts = self.stages(load.part(jobs)), self.collectives.split.pipeline
        # A pipeline stage passes its batch on undivided.
        passed = parts * overlapped_s(stages, self.model.layers / parts, jobs)
        return self._waited_s(passed + self.collectives.embedding(load.tokens), load, stages, jobs)

    def _waited_s(self, total: F8, load: Load, stages: list[Stage], jobs: F8 | float) -> F8:
        """``total`` of all layers, plus their waits for weights read while the layer before runs.

        stages: the mean layer's, of each of ``jobs``; their transfers occupy the same links.
        """
        if not self.streamed and (self.expert_loads is None or not self.expert_loads.foresees):
            return np.asarray(total)
        layer, carried = total / self.model.layers, station_seconds(stages)
        ahead = self._foreseen_s(load)
        for station, (layers, ahead_s) in ahead.items():
            own_s = jobs * carried.get(station, np.zeros(()))
            total = total + layers * np.maximum(own_s + ahead_s - layer, 0.0)
        for layers, moved, name in self.streamed:
            station = self.link_station(name, ACCELERATOR)
            own_s = jobs * carried.get(station, np.zeros(()))
            if station in ahead:
                own_s = own_s + ahead[station][1] * ahead[station][0] / self.model.layers
            read_s = self.transfer_s(name, ACCELERATOR, np.asarray(moved))
            # Of what the link carries anyway, the layer has waited already.
            total = total + layers * (np.maximum(own_s + read_s - layer, 0.0) - np.maximum(own_s - layer, 0.0))
        return np.asarray(total)

    def _foreseen_s(self, load: Load) -> dict[str, tuple[float, F8]]:
        """(layers, seconds of a layer) that prefetched experts occupy a link, by station."""
        ahead: dict[str, tuple[float, F8]] = {}
        for product in self.products:
            fetched = None
            if product.op.routed and self.expert_loads is not None and self.expert_loads.foresees:
                fetched = self.expert_loads.fetched_bytes(product.op, load.tokens)
            if fetched is not None:
                station = self.link_station(fetched[0], self.map["experts"])
                before = ahead.get(station, (0.0, np.zeros(())))[1]
                seconds = before + self.transfer_s(fetched[0], self.map["experts"], fetched[2])
                ahead[station] = (float(product.op.layers), seconds)
        return ahead

    def _joules(self, load: Load, jobs: F8 | float) -> dict[str, F8]:
        """Joules of all layers for a load that is one of ``jobs``; streamed weights cross once per step."""
        by_component = self._by_component(self.stages(load, "joules"), np.zeros(np.shape(load.tokens)))
        by_component = {name: joules * self.model.layers for name, joules in by_component.items()}
        if self.collectives.network is not None:
            by_component["link"] = by_component["link"] + self.collectives.embedding(load.tokens, "joules")
        for layers, moved, name in self.streamed:
            by_component["link"] = (
                by_component["link"] + layers * moved * self.link_j_per_byte(name, ACCELERATOR) / jobs
            )
        return by_component

    def _by_component(self, stages: list[Stage], zero: F8) -> dict[str, F8]:
        totals = dict.fromkeys(self.components, zero)
        for stage in stages:
            name = self.devices[stage.station].kind if stage.station in self.devices else "link"
            totals[name] = np.asarray(totals[name] + stage.seconds)
        return totals
