"""What all tests share."""

import pytest
import torch

torch.set_num_threads(1)  # of each worker: with two workers on two cores, more would fight over small products


@pytest.fixture(scope="session")
def few_antennas() -> str:
    """A scenario of 4×2 to 2×1 antennas with 6 pilots, as TOML: small enough that everything takes seconds."""
    return """
[bs]
rows = 4
columns = 2
yaw_spread = 60.0
[ue]
rows = 2
columns = 1
[frontend]
pilots = 6
"""
