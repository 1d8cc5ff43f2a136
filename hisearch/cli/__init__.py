"""The command line: every verb parses, calls the library, prints. Heavy modules are imported inside the verbs.

``main`` is the command, ``verbs`` has a module a verb, ``views`` prints results; ``output``, ``errors``,
``options``, ``streams`` and ``compilation`` are shared. Imports all packages; none imports from here.
"""
