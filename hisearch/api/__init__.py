"""The Python API: studies, single deployments, workloads by name, stored runs. The command line only calls these.

``studies``, ``fleets`` and ``deployments`` have the questions and their results, ``runs`` what lies in run folders;
``calibrate``, ``compare``, ``dashboard``, ``verify`` and ``bench`` a verb each. ``hisearch`` itself names what is
public.
Imports everything but ``cli``.
"""
