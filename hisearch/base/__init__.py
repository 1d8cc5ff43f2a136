"""Lowest layer: every package may import it; it imports no other hisearch package.

``jit`` compiles kernels; ``linking`` optimises each with all that it calls; ``compiler_speed`` makes numba's own work
cheaper; ``kernel_cache`` keeps them on disk; ``prebuilt`` are those of a wheel; ``indexing`` is the rule for indices;
``dtypes`` names array types; ``one_thread`` keeps linear algebra to one thread.
"""
