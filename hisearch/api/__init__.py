"""The Python API: studies, single deployments, workloads by name, stored runs. The command line only calls these.

``deployments`` and ``studies`` hold the inputs and their results; ``fleet_study`` joins studies of several models.
``run_folder`` reads and writes run folders, ``provenance`` says where their figures come from. ``compare``
(with ``fronts``), ``dashboard``, ``verify`` and ``bench`` implement one verb each. ``hisearch`` exports the public
names. Imports everything but ``cli``.
"""
