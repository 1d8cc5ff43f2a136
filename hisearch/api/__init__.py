"""The Python API: studies, single deployments, workloads by name, stored runs. The command line only calls these.

``studies``, ``fleets`` and ``deployments`` hold the inputs and their results; ``runs`` reads and writes run folders.
``calibrate``, ``compare``, ``dashboard``, ``verify`` and ``bench`` implement one verb each. ``hisearch`` exports the
public names.
Imports everything but ``cli``.
"""
