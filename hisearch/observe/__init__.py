"""What a running server does, from outside by its endpoints and from inside by a log.

From outside: ``client`` asks, ``servers`` has a file for each engine that reads the answers, ``watch`` looks again and
again, ``load`` fits a workload, ``words`` says how it fares. Parsing is pure; ``client`` alone speaks to the network.

From inside: ``vllm_step_log`` is loaded by vLLM in its own environment. It imports the standard library and the engine,
nothing of hisearch, so that the file alone can be copied to a server; nothing here imports it.

Imports ``base``, ``specs`` and the standard library.
"""
