"""Covariances of channels with the structure that arrays, rays and delays give them; n × n is formed only on request."""

from chanest.covariances.columns import ColumnCovariance, MainDirections
from chanest.covariances.directions import DirectionCovariance, Directions
from chanest.covariances.kronecker import KroneckerCovariance
from chanest.covariances.lags import BeamView, LagCovariance, LagLayout

__all__ = [
    "BeamView",
    "ColumnCovariance",
    "DirectionCovariance",
    "Directions",
    "KroneckerCovariance",
    "LagCovariance",
    "LagLayout",
    "MainDirections",
]
