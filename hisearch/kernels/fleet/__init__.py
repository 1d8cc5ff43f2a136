"""The event loop of a whole fleet.

``cluster`` runs it; ``members`` starts and stops workers, ``losses`` handles requests of dead workers, ``admission``
refuses requests; ``compilation`` compiles the event loop and the engines.

Imports all other packages of ``kernels`` but ``cachesim``; ``simulate`` imports from here.
"""
