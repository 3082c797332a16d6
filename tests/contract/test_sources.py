"""Every channel source, through the shipped scenarios that use it, meets the contract of a source."""

from __future__ import annotations

from functools import cache
from typing import get_args

import pytest
import torch

from chanest.problem import ChannelProblem
from chanest.scenario import load_scenario, scenario_names
from vlista_core.draws import Split

POWER_DB = 2.0
"""How far the power of 64 channels may lie from E|h|² = 1: entries of one channel fade together."""


@cache
def _problem(name: str) -> ChannelProblem:
    return ChannelProblem(load_scenario(name))


@pytest.mark.parametrize("name", scenario_names())
def test_a_channel_is_a_function_of_seed_split_and_index(name: str) -> None:
    """Whatever the batch, to the bit; and seeds, splits and indices have channels of their own."""
    problem = _problem(name)
    whole = problem.channels(6, seed=4)
    parts = [problem.channels(count, seed=4, start=start) for start, count in ((0, 1), (1, 2), (3, 3))]
    assert torch.equal(torch.cat(parts), whole)
    others = []
    if problem.source.available("train") != 0:
        others.append(problem.channels(6, seed=4, split="train"))
        assert not torch.isclose(problem.channels(6, seed=5, split="train"), others[0]).all()
    if problem.source.available("test") is None:  # A stored set of test channels is the same for every seed.
        others.append(problem.channels(6, seed=5))
    if problem.source.snapshots == 1:
        others.append(whole.roll(1, 0))
    for other in others:
        assert not torch.isclose(other, whole).all(1).any()


@pytest.mark.parametrize("name", scenario_names())
def test_a_split_without_samples_is_refused_in_one_sentence(name: str) -> None:
    problem = _problem(name)
    assert problem.source.available("test") != 0
    for split in get_args(Split):
        refused = problem.source.available(split) == 0
        assert (problem.source.different(split) == 0) == refused
        assert bool(problem.source.obstacle(split)) == refused
        if refused:
            with pytest.raises(ValueError, match=split) as fault:
                problem.channels(1, seed=4, split=split)
            assert str(fault.value).isprintable()


@pytest.mark.parametrize("name", scenario_names())
def test_channels_are_finite_of_unit_power_and_the_same_with_one_thread_and_two(name: str) -> None:
    problem = _problem(name)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(problem.channels(8, seed=4))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)
    signal = problem.channels(64, seed=4) if problem.signal_length <= 1024 else found[0]
    assert signal.dtype == problem.dtype
    assert signal.shape[1] == problem.signal_length
    assert bool(torch.isfinite(signal).all())
    if len(signal) == 64 and problem.source.snapshots == 1:
        assert abs(10 * float(signal.abs().square().mean().log10())) <= POWER_DB


@pytest.mark.parametrize("name", scenario_names())
def test_rays_are_those_of_the_channels(name: str) -> None:
    """Where a source has rays they are finite, come with its samples and, where it is made of them, give its channels again."""
    problem = _problem(name)
    drawn = problem.sample(3, seed=4).rays
    if not problem.source.has_rays:
        assert drawn is None
        with pytest.raises(ValueError, match="whose rays nobody knows"):
            problem.rays(range(3), seed=4, split="test")
        return
    if problem.users > 1:
        assert drawn is None
        with pytest.raises(ValueError, match=f"{problem.users} users, whose rays are not those of one channel"):
            problem.rays(range(3), seed=4, split="test")
        return
    rays = problem.rays(range(3), seed=4, split="test")
    assert drawn is not None
    for tensor, same in zip(rays.tensors(), drawn.tensors(), strict=True):
        assert bool(torch.isfinite(tensor).all())
        assert torch.equal(tensor, same)
    if not problem.source.from_rays:
        return
    again = problem.source.matrices(rays).mT.reshape(3, -1)
    first = problem.channels(3, seed=4)[:, : again.shape[1]]  # rays are those of the first snapshot
    torch.testing.assert_close(again, first, rtol=1e-4, atol=1e-4)
