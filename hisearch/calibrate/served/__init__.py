"""Calibration on a server that serves: which requests to send, what they tell of steps, and of the front end."""
