"""Mechanisms that read private data or draw secret noise: shards, samples, clipping, votes and exact noise.

Start with `SecureNoise` in `noise.py`; every release adds its noise.
Nothing here charges an account: the caller pays before noise is drawn.
"""
