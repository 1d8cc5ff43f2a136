"""Lowest layer: every package may import it; it imports no other hisearch package.

``jit`` compiles kernels; ``kernel_cache`` keeps them on disk; ``indexing`` is numba's rule for their indices;
``dtypes`` names array types; ``one_thread`` keeps linear algebra to one thread.
"""
