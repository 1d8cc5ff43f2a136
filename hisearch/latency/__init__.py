"""Latency: a model's operators, estimators of a step's time and energy, memory plans, step-cost tables.

``operators``, ``parameters`` and ``sharding`` describe a model on its ranks; ``laws``, ``measured``, ``workers`` and
``devices`` price operators; ``tabulate`` and ``estimators`` put them together to ``costs``; ``host`` adds host work;
``device_memory`` plans memory, ``drafting`` adds drafted tokens. The stages from a model to the seconds of a step, with
the file of each: ``docs/latency.md``.
Imports ``hardware``, ``traces``, ``specs`` and ``base``; ``kernels`` and ``simulate`` import from here.
"""
