"""The lowest floor: what every package may import and what imports nothing of ours.

``jit`` compiles kernels; ``kernel_cache`` keeps them on disk; ``indexing`` is numba's rule for their indices;
``dtypes`` names array types; ``one_thread`` keeps linear algebra to one thread.
"""
