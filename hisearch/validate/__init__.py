"""Validates single parts of hisearch against recordings and measurements, a module for each verb of ``validate``.

``scheduler`` and ``router`` replay recorded decisions (``recording``, ``replay``, ``difference``); ``e2e``,
``open_loop`` and ``silicon`` repeat served workloads, ``batch`` measured attention, ``cache`` a cache alone.

Imports ``simulate`` and what is below it.
"""
