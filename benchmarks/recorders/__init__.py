"""Recorders: play an env with random actions and keep what it shows."""
