"""Sparse recovery with a sensing matrix that changes with every sample."""
