"""Orders of the waiting queue, a file each: of SGLang's, and those of ``counts_service`` of vLLM's too.

To add one: a file that assigns a ``QueueOrder`` to ``ORDER`` (see ``base.policies``). The lowest key goes first, and
equal keys keep their order. Either it has a kernel ``key(sim, r)``, by which request ``r`` is put into the queue when
it arrives or is retracted. Or it declares ``every_pass`` and has a kernel ``sort(sim, w, count)``, which brings the
``count`` requests of ``waiting_order.collect`` into order whenever a pass tries to prefill. ``arrives(sim, r)``, if it
has one, prepares a request. Without any of them requests wait in the order in which they came.

vLLM knows ``fcfs``, ``priority`` and ``edf`` by name. Files of orders that it sorts by import nothing of ``sglang``.

The same rule, slowly, belongs into ``tests/reference/restatement/sglang_order.py``. No order may read how many tokens a
request will really generate (law L5): ``max_output_tokens`` is what it declares.

Imports ``base``, ``core``, ``traffic`` and modules of ``sglang``.
"""
