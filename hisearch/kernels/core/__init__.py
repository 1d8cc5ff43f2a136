"""Helpers for every kernel, independent of simulations.

``handle`` passes records of arrays between compiled functions; ``heap`` and ``linked_list`` are those of all kernels;
``dispatch`` calls a policy's kernel by its code. ``bits``, ``rng``, ``tournament``, ``gap_bins``, ``turns`` and
``owners`` are small algorithms over plain arrays.

Imports only ``base``. Every package may import from here.
"""
