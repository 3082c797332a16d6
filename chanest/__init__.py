"""Wireless MIMO channel estimation: channels, front ends, estimators, evaluation."""
