"""The event loop of a whole fleet.

``cluster`` runs it; ``dispatch`` brings requests to workers, ``admission`` refuses them, ``losses`` handles those of
dead workers; ``members`` starts and stops workers; ``compilation`` compiles the event loop and the engines.

Imports all other packages of ``kernels`` but ``cachesim``; ``simulate`` imports from here.
"""
