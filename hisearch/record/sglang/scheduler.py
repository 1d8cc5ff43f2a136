"""The engine's scheduler on the virtual clock: what all versions have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from hisearch.record.sglang.drafts import Drafts
from hisearch.record.sglang.timeline import Timeline


class OrderedSet(dict[Any, None]):
    """Stands in for ``set`` in the engine's schedule policy: iterates in order of insertion.

    The engine queues the requests that one request preempts in the order of a set, which is that of their addresses. A
    recording has them in the order in which the engine chose them.
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    def add(self, item: Any) -> None:
        """Put an item behind the others."""
        self[item] = None


class Recording:
    """Mixed into the engine's ``Scheduler``: a forward pass takes its time from the latency law, and is recorded.

    Attributes:
        timeline: the clock.
        tokens: all tokens of each request, by id.
        pending: requests by id that have not arrived.
        drafts: drafted tokens, or None.
        adapters: LoRA adapters, or None. grammars: likewise.
    """

    timeline: Timeline
    tokens: dict[Any, list[int]]
    pending: dict[Any, Any]
    waiting_queue: list[Any]
    running_batch: Any
    last_batch: Any
    chunked_req: Any
    enable_overlap: bool
    tp_worker: Any
    drafts: Drafts | None = None
    adapters: Any = None
    grammars: Any = None
    _arriving = False

    @cached_property
    def _cut(self) -> dict[Any, int]:
        """Tokens of prompts that decoding requests lost, by id."""
        return {}

    @cached_property
    def _decoding(self) -> set[Any]:
        """Requests whose prompts are done, by id."""
        return set()

    def use_adapters(self, adapters: Any) -> None:
        """Serve requests with LoRA adapters (see ``adapters``)."""
        self.adapters, self.enable_lora, self.max_loras_per_batch = adapters, True, adapters.slots
        self.enable_lora_overlap_loading, self.lora_overlap_loader = adapters.overlaps, adapters.loader
        self.lora_drainer = adapters.drainer
        self.tp_worker.model_runner.lora_manager = adapters.manager

    def use_grammars(self, grammars: Any) -> None:
        """Serve requests with grammars (see ``grammars``)."""
        self.grammars, self.grammar_manager = grammars, grammars.manager

    # Requests.

    def arrivals(self) -> list[Any]:
        """The start of a pass: the clock moves if the last one was idle, and requests that are due come in."""
        self._begin_pass()
        return [self.pending.pop(name) for name in self.timeline.due()]

    def pass_without_arrivals(self) -> list[Any]:
        """The start of a pass that does not look for requests."""
        self._begin_pass()
        return []

    def _begin_pass(self) -> None:
        live = bool(self.waiting_queue) or not self.running_batch.is_empty() or self.chunked_req is not None
        if self.grammars is not None and self.grammars.waiting:
            self.timeline.go_on()
        self.timeline.begin_pass(bool(self.waiting_queue), live)
        if self.timeline.threads is not None:
            self.timeline.threads.advance()

    def take(self, requests: Sequence[Any]) -> None:
        """Put arrived requests into the queue."""
        self._arriving = True
        for request in requests:
            self.init_req_max_new_tokens(request)  # type: ignore[attr-defined]
            if self.grammars is None or not self.grammars.queues(request):
                self._add_request_to_queue(request)
        self._arriving = False

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        self._decoding.discard(req.rid)
        if is_retracted:
            self.timeline.retracted.append(req.rid)
        elif self.grammars is not None and req.rid in self.grammars.entering:
            self.grammars.entering.discard(req.rid)
        elif not self._arriving:
            self.timeline.preempted.append(req.rid)
        super()._add_request_to_queue(req, is_retracted=is_retracted)  # type: ignore[misc]

    # Batches.

    def launch(self, batch: Any) -> tuple[float, list[int]]:
        """Record a batch; returns when it ends, and the token that each of its requests gets; with drafts all."""
        if self.drafts is not None:
            if batch.forward_mode.is_decode():
                return self._launch_decode_with(self.drafts, batch)
            self.drafts.prompts(batch)
        names = [request.rid for request in batch.reqs]
        lengths = [int(length) for length in batch.seq_lens_cpu]
        mode = batch.forward_mode.name.lower()
        if mode == "decode":
            work = [(name, length - 1, 1) for name, length in zip(names, lengths, strict=True)]
        else:
            new = [int(count) for count in batch.extend_lens]
            work = [(name, length - count, count) for name, length, count in zip(names, lengths, new, strict=True)]
        kind = {"extend": "prefill"}.get(mode, mode)
        more_s = 0.0 if self.adapters is None else self.adapters.apply(batch, [new for _, _, new in work])
        host_s = 0.0 if self.grammars is None else self.grammars.host_s(batch)
        end = self.timeline.launch(kind, work, self.pool(), self.ratio(), more_s, host_s)
        for request, length in zip(batch.reqs, lengths, strict=True):
            self._note_cut(batch, request, length)
        tokens = [self.token_after(name, length) for name, length in zip(names, lengths, strict=True)]
        return end, tokens

    def _launch_decode_with(self, drafts: Drafts, batch: Any) -> tuple[float, list[int]]:
        work = [(request.rid, int(request.kv.kv_committed_len), 1 + drafts.count) for request in batch.reqs]
        end = self.timeline.launch("decode", work, self.pool(), self.ratio())
        return end, drafts.decodes(batch, self.tokens)

    def _note_cut(self, batch: Any, request: Any, length: int) -> None:
        """Note what a prompt loses that is cut and decodes all the same; its output is what it would be without a cut.

        The engine does so without radix cache, where two prompts are cut in one pass: it notes the second alone.
        """
        if batch.forward_mode.is_decode() or request.rid in self._decoding:
            return
        self._cut.pop(request.rid, None)
        if request is not batch.chunked_req:
            self._decoding.add(request.rid)
            self._cut[request.rid] = len(request.origin_input_ids) + len(request.output_ids) - length

    def token_after(self, name: Any, length: int) -> int:
        """The token that follows the first ``length`` of a request; 0 past its end, where none is read."""
        tokens = self.tokens[name]
        at = length + self._cut.get(name, 0)
        return tokens[at] if at < len(tokens) else 0

    def note_results(self, batch: Any) -> None:
        """After the engine has processed a batch's results: who has a token, who is done."""
        for request in batch.reqs:
            if request.output_ids:
                self.timeline.token(request.rid, request.finished())

    def pool(self) -> tuple[int, ...]:
        """Free and evictable tokens; with sliding windows behind them those of the window layers' pool."""
        free = self.token_to_kv_pool_allocator.available_size()  # type: ignore[attr-defined]
        return int(free), int(self.tree_cache.evictable_size())  # type: ignore[attr-defined]

    def ratio(self) -> float:
        """The new-token ratio."""
        raise NotImplementedError
