"""Calibration on a server that serves: which requests to send, what they tell of steps, and of the front end.

Imports the modules of ``calibrate`` and ``observe``; ``api`` imports both modules.
"""
