"""What every kernel may use and what knows nothing of simulations.

``handle`` passes records of arrays between compiled functions; ``bits``, ``rng``, ``tournament``, ``gap_bins``,
``turns`` and ``owners`` are small algorithms over plain arrays.

Imports ``base`` alone. Everybody may import from here.
"""
