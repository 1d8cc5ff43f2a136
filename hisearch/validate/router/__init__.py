"""The simulated routers against recordings of a real one, choice by choice.

``recording`` reads the files, ``texts`` makes their prompts and the prefix tree over them, ``replay`` compares. The
replay drives the very kernels that simulate routers (``simulate.lone_router``).

Imports ``simulate`` and what is below it.
"""
