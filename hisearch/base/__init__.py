"""The lowest floor: what every package may import and what imports nothing of ours.

``jit`` compiles kernels and names their on-disk cache; ``indexing`` is numba's rule for their indices; ``dtypes`` names
array types; ``one_thread`` keeps linear algebra to one thread.
"""
