"""Jitted simulation kernels: arrays and scalars in, arrays out.

Nothing here reads files, logs, or knows pandas or pydantic. ``layout`` declares every array; ``cluster`` holds the
event loop; ``vllm`` and ``sglang`` one engine's step rule each; ``tree`` the prefix cache that both share.
"""
