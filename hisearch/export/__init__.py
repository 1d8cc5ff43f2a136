"""A deployment as launch scripts and manifests.

``deployment`` writes the folder. ``engines`` has flags and other settings, ``servers`` places the pools' servers on
hosts, ``platforms`` has a module for each way to start them, which ``registry`` finds. ``expressible`` checks a
deployment without writing.
Imports ``report`` and what is below it; ``api`` imports from here.
"""
