"""Covariances of channels with the structure that arrays, rays and delays give them; n × n is formed only on request."""
