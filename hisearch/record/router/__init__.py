"""Recordings of what sglang-router chooses, to hold the simulated routers against.

Runs in an environment that has the wheel ``sglang-router``; imports the standard library and that, nothing else.
``cases`` draws settings and events, ``mocks`` are the workers and the client, ``texts`` makes prompts, ``run`` records.
Everything listens on 127.0.0.1.
"""
