"""Workloads: formats in, generators, statistics; a trace compiled to arrays (requests and prefix tree).

Entry points: ``load.load_workload`` and ``load.load_trace_file`` (to a ``CompiledTrace``), ``importers.read_trace`` and
``generate.generate_trace`` (to a ``Trace``), ``canonical.write_trace``, ``stats.trace_stats``.
"""
