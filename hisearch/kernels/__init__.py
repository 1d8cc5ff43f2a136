"""Jitted simulation kernels: arrays and scalars in, arrays out.

Nothing here reads files, logs, or knows pandas or pydantic. Corridors, each of which imports from those before it:
``core``, ``layout``, ``traffic``, ``cache``, ``engine``, then ``vllm``, ``trtllm``, ``hicache``, ``sglang``,
``agents``, ``routing`` and ``fleet``. ``cachesim`` imports ``cache`` alone of these.
Imports ``latency``, ``traces`` and ``base``; ``simulate`` imports from here.
"""
