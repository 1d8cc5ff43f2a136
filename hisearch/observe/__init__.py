"""What a running server does, written down for hisearch by a file that runs inside the server.

``vllm_step_log`` is loaded by vLLM in its own environment: it imports the standard library and the engine, nothing of
hisearch, so that the file alone can be copied to a server. Nothing here is imported by the rest of hisearch.
"""
