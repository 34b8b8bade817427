"""Shares: what is linear in a policy's nine shares, as vectors.

The shares are those of weights, cache and activations on the GPU, in CPU memory and on disk. A cost is a vector of what
each share adds, and a constant, so that the planner can solve for the shares.
"""

import numpy as np

from genwright.placement.policy import Policy

WHAT = ("weights", "cache", "activations")
PLACES = ("gpu", "cpu", "disk")
SHARES = tuple(f"{what}_{place}" for what in WHAT for place in PLACES)
CACHE = np.array([name.startswith("cache") for name in SHARES])
Vector = np.ndarray[tuple[int], np.dtype[np.float64]]  # one number for each of SHARES, and a constant


def vector(constant: float = 0.0, **shares: float) -> Vector:
    return np.array([shares.get(name, 0.0) for name in SHARES] + [constant])


def share_vector(policy: Policy) -> Vector:
    """A policy's shares, from 0 to 1, and a one for the constant."""
    return np.array([share / 100 for what in WHAT for share in policy.shares(what)] + [1.0])


def held_vector(policy: Policy, sequences: int) -> Vector:
    """The shares by which tiers take memory: a tier holds the cache of whole sequences."""
    shares = share_vector(policy)
    shares[:-1][CACHE] = [-(-share * sequences // 100) / sequences for share in policy.shares("cache")]
    return shares
