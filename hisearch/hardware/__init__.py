"""Hardware: collectives, prices, power. Facts and small formulas.

``topology``, ``collectives`` and ``host_path`` say how long bytes take between devices; ``peaks`` and ``power`` are of
a device; ``price_book`` and ``prices`` are what it costs.
Imports ``specs`` and ``base``; ``latency`` and all above it import from here.
"""
