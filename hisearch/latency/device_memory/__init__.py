"""Device memory of one rank: the plan, vLLM's profiling run, loading."""
