"""The command line: every verb parses, calls the library, prints. Nothing heavy is imported before a verb needs it.

``main`` is the command, ``verbs`` a module for each verb, ``views`` what they print; ``output``, ``errors``,
``options``, ``streams`` and ``compilation`` are shared. Nobody imports from here.
"""
