"""Replay and rollout buffers for Stable-Baselines3 that keep observations compressed, losslessly."""

__version__ = "0.6.0"
