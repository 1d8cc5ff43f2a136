"""Workloads: formats in, generators, statistics; a trace compiled to arrays (requests and prefix tree).

``reading`` and ``importers`` read files, ``generators`` and ``generate`` make requests, ``changes`` derives traces
from others.
Entry points: ``load.load_workload`` and ``load.load_trace_file`` (to a ``CompiledTrace``), ``importers.read_trace``
and ``generate.generate_trace`` (to a ``Trace``), ``reading.canonical.write_trace``, ``stats.trace_stats``.

Imports ``specs`` and ``base``.
"""
