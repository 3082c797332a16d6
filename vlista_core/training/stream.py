"""Draws for training and validation, made in one background thread while the main one computes.

A draw depends on (seed, split, index) alone, so drawing ahead changes no number. One thread makes all draws in order: a
Problem never sees two calls at once.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, pairwise
from typing import TYPE_CHECKING, cast

import torch

from vlista_core.draws import Split
from vlista_core.problems import Batch, Problem

if TYPE_CHECKING:
    from vlista_core.training.trainer import Trainer


class Stream:
    """The samples of one process: its share of the `slices` equal slices of every global batch."""

    def __init__(
        self, problem: Problem, plan: "Trainer", *, seed: int, slices: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self.problem, self.plan, self.seed, self.total_slices = problem, plan, seed, slices
        each = slices // world_size
        self.slices = range(rank * each, (rank + 1) * each)
        self._slice = plan.batch_size // slices
        starts, most = range(0, plan.validation_samples, self._slice), plan.validation_samples
        self._validation = [(start, min(self._slice, most - start)) for start in starts][rank::world_size]
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="draws")
        self._pending: tuple[int, list[Future[Batch]]] | None = None

    @property
    def validation_slices(self) -> float:
        """How many batches of the size of the first one `validation` gives; the last may be a part of one."""
        return sum(count for _, count in self._validation) / self._slice

    def close(self) -> None:
        """End the thread; what it has not begun to draw is given up."""
        self._pool.shutdown(cancel_futures=True)

    def training(self, step: int) -> Iterator[tuple[int, Batch]]:
        """(slice number, samples) for each of this process's slices of step `step`; starts drawing the next step."""
        if self._pending is None or self._pending[0] != step:
            self._pending = step, self._submit_step(step)
        current = self._pending[1]
        if self.plan.total_steps is None or step + 1 < self.plan.total_steps:
            self._pending = step + 1, self._submit_step(step + 1)
        for number, future in zip(self.slices, current, strict=True):
            yield number, future.result()

    def validation(self) -> Iterator[Batch]:
        """This process's share of the fixed validation samples, drawn anew each time so that no Φ stays in memory."""
        draws = (self._pool.submit(self._draw, "validation", *part) for part in self._validation)
        for current, _ in pairwise(chain[Future[Batch] | None](draws, [None])):
            yield cast(Future[Batch], current).result()

    def _submit_step(self, step: int) -> list[Future[Batch]]:
        samples, size = self.plan.training_samples, self.plan.batch_size
        start = (step if samples is None else step % (samples // size)) * size
        return [self._pool.submit(self._draw, "train", start + i * self._slice, self._slice) for i in self.slices]

    @torch.no_grad()
    def _draw(self, split: Split, start: int, count: int) -> Batch:
        return self.problem.sample(count, seed=self.seed, split=split, start=start)
