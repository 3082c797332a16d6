"""What all channel estimators share: the noise may be unknown, the arrays are checked, weights go to a file and back."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from chanest.bases import power
from chanest.bases.chunks import chunk_by_chunk, joined, selected
from chanest.covariances.delay_powers import ModeParts
from chanest.fit import Fit
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.recordings import Recordings
from chanest.uncertainty.calibration import Calibration
from chanest.uncertainty.estimate import ChannelEstimate, independent
from chanest.uncertainty.noise import NoiseModel
from vlista_core.configured import Configured, register
from vlista_core.draws import Split
from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.gaussian import Covariance, condition
from vlista_core.linops import LinearMap
from vlista_core.metrics import nmse_db
from vlista_core.problems import Batch
from vlista_core.tensorfile import Json

SNRS_DB = (0.0, 10.0, 20.0)
"""At which fits are validated, unless a method asks for others."""
Form = Literal["pt2", "onnx"]
"""A file that holds an estimator for programs without this package."""
LEARNT_FROM: tuple[Split, ...] = ("train", "validation")
"""Splits that a fit draws from."""
_SPREAD_ENTRIES = 2**22
"""Of the covariances that are worked with at once where variances are asked for."""
ChunkSpread = Callable[[Measurement, Tensor, Estimate, LinearMap | None], Tensor | None]
"""Variances of some samples: their measurement, which they are, their estimate, and P for them."""


class ChannelEstimator(nn.Module, Estimator, Configured):
    """ĥ = vec(Ĥ) from y = Φh + n for one pair of arrays. A subclass is one file and one line in the registry.

    A class that gives itself a `name` can be loaded from files.
    """

    name: ClassVar[str]
    """As in the registry, tables and file names."""
    summary: ClassVar[str]
    """One line for `chanest estimators`."""
    needs_fit: ClassVar[bool] = False
    """Whether it is of no use before `fit` (or weights) has given it something to go by."""

    half_precision: ClassVar[bool] = False
    """Whether its file is in half precision."""
    narrowband: ClassVar[bool] = False
    """Whether it is for one subcarrier only."""
    mode_by_mode: ClassVar[bool] = False
    """Whether many subcarriers that are all measured alike are taken in delay modes, each as one subcarrier is: see
    `chanest.bases.modewise`."""
    alike_subcarriers: ClassVar[bool] = False
    """Whether every subcarrier has to be measured by the same pilots and beams."""
    slots: ClassVar[bool] = False
    """Whether a sample may be several snapshots of a channel that moves."""
    one_polarisation: ClassVar[bool] = False
    """Whether it is for arrays of one polarisation only."""
    any_scenario: ClassVar[bool] = False
    """Whether one file of weights serves every scenario, after `for_problem`."""
    goes_on: ClassVar[bool] = False
    """Whether `fit` goes on from the weights that the estimator has, such as those of a file; others learn from nothing."""
    learns_from_pilots: ClassVar[bool] = False
    """Whether `fit_from_pilots` is there: it can learn a site from y and Φ alone."""
    learns_from_rays: ClassVar[bool] = False
    """Whether `fit` needs the rays behind the training channels."""
    begins_with: ClassVar[str | None] = None
    """The estimator whose weights for the same scenario `begin_with` is given before `fit`, where there are some."""
    longest: ClassVar[int | None] = None
    """The largest n for which its matrices of n × n entries are meant; None for any."""
    per_subcarrier: ClassVar[bool] = False
    """Whether these are of one subcarrier, so that n is to be divided by their number."""
    scale_free: bool = False
    """Whether s·y and s²·σ² give s·ĥ by themselves, as long as y is stronger than noise; others know that E|h|² = 1 and get
    y in a unit that makes it so."""
    exported_as: ClassVar[tuple[Form, ...]] = ()
    """The files that `chanest export` makes of it: see `chanest.export`."""
    loudest: ClassVar[float | None] = None
    """The σ² up to which a method without a prior was tuned or trained: see `chanest.bases.power.kept`. None for the others."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            register(cls)

    def __init__(self, signal_length: int) -> None:
        super().__init__()
        self.signal_length = signal_length
        self.noise = NoiseModel()
        self.calibration: Calibration | None = None

    @classmethod
    @abstractmethod
    def build(cls, problem: ChannelProblem) -> Self:
        """An estimator of the right sizes, with default settings and nothing learned. The problem has passed `check`."""

    @classmethod
    def check(cls, problem: ChannelProblem) -> None:
        """ValueError where the method is not for problems of this kind."""
        modewise = cls.goes_mode_by_mode(problem)
        length = problem.signal_length // (problem.subcarriers if cls.per_subcarrier or modewise else 1)
        if cls.longest is not None and length > cls.longest:
            raise ValueError(
                f"{cls.name} works with matrices of n x n entries, n at most {cls.longest}; {problem.scenario.name} has "
                f"n = {length}"
            )
        if cls.narrowband and problem.subcarriers > 1 and not modewise:
            raise ValueError(f"{cls.name} is for one subcarrier; {problem.scenario.name} has {problem.subcarriers}")
        if problem.snapshots > 1 and not cls.slots:
            held = f"a sample of {problem.scenario.name} has {problem.snapshots}"
            raise ValueError(f"{cls.name} is for one snapshot at a time; {held}")
        if cls.alike_subcarriers and not problem.sees_all_subcarriers_alike:
            found = f"{problem.scenario.name} has them on some"
            raise ValueError(f"{cls.name} is for the same pilots on every subcarrier; {found}")
        rx, tx = problem.arrays
        if cls.one_polarisation and max(len(rx.slants), len(tx.slants)) > 1:
            came = f"{tx.polarization} to {rx.polarization}"
            raise ValueError(f"{cls.name} is for arrays of one polarisation; {problem.scenario.name} has {came}")

    @classmethod
    def goes_mode_by_mode(cls, problem: ChannelProblem) -> bool:
        """Whether a problem is estimated in delay modes by what this is for one subcarrier."""
        return cls.mode_by_mode and problem.subcarriers > 1 and problem.sees_all_subcarriers_alike

    @classmethod
    def check_training(cls, problem: ChannelProblem) -> None:
        """ValueError where `fit` has nothing to learn from: no channels to train with, or rays that nobody knows."""
        empty = [split for split in LEARNT_FROM if problem.source.available(split) == 0]
        if empty:
            raise ValueError(f"{problem.scenario.name} is for tests only: it has no {' and no '.join(empty)} channels")
        if cls.learns_from_rays:
            problem.check_rays()

    def for_problem(self, problem: ChannelProblem) -> Self:
        """The estimator for the arrays of a problem; itself, unless its weights serve `any_scenario`."""
        return self

    def begin_with(self, other: "ChannelEstimator") -> None:
        """Take over what `begins_with` has learned, where it fits."""

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """Learn or tune in place from the training and validation splits; returns what the file should say of it."""
        raise ValueError(f"{self.name} has nothing to learn or tune")

    def fit_from_pilots(self, recordings: Recordings, plan: Fit) -> dict[str, Json]:
        """Learn in place from recordings, whose channels nobody knows; returns what the file should say of it."""
        raise ValueError(f"{self.name} cannot learn from pilots alone")

    @abstractmethod
    def infer(self, measured: Measurement) -> Estimate:
        """The estimate of checked inputs whose noise is known, a chunk at a time; `estimate` runs it without gradients."""

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        """What `estimate` computes of E|h|² = 1 and a known noise [batch], for `torch.export`: no checks, chunks and units."""
        measured = Measurement(y, phi, noise_var)
        found = self.infer(measured)
        return found if self.loudest is None else power.kept(measured, found, self.loudest)

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float | None = None) -> ChannelEstimate:
        """See Estimator; noise_var None is estimated from y, sample by sample. `variance` is worked out when it is read."""
        measured = self.checked(y, phi, noise_var)
        with torch.no_grad():
            unit = None if self.scale_free else self.unit(measured)
            measured = measured if unit is None else power.in_unit(measured, unit)
            found = joined(chunk_by_chunk(lambda part, _: self.infer(part), measured, self.chunk(measured)))
            found = found if self.loudest is None else power.kept(measured, found, self.loudest)
        own = partial(self._variance, None, measured, found, unit)
        out = found if unit is None else power.out_of_unit(found, unit)
        if self.calibration is None:
            return ChannelEstimate(out, own)
        spread = partial(self._variance, self.calibration, measured, found, unit)
        radius = partial(self.calibration.radius, noise_var=measured.noise_var)
        return ChannelEstimate(out, spread, own=own, radius=radius)

    def estimate_modes(self, parts: ModeParts) -> Estimate:
        """The estimate over many subcarriers from their delay modes; a method that couples them does more."""
        each = parts.each
        return Estimate(parts.together(self.estimate(each.y, each.phi, each.noise_var).signal))

    def unit(self, measured: Measurement) -> Tensor | None:
        """What h is to be divided by so that E|h|² = 1, 1 where fading explains its power: [batch]; None for 1 throughout."""
        unusual = power.unusual(measured, self.name)
        if unusual is None:
            return None
        gain = self.noise.gain(measured.select(unusual))
        return torch.ones_like(measured.noise_var).masked_scatter(unusual, gain.sqrt())

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor | None:
        """Variance of the errors of ĥ, or of Pĥ, as the method itself has it, a chunk at a time: [batch, n or p] or None.

        found: what `infer` gave; its variance, where it has one, is taken for that of independent errors.
        """
        return None if found.variance is None else independent(found.variance, probes)

    def _variance(
        self,
        calibration: Calibration | None,
        measured: Measurement,
        found: Estimate,
        unit: Tensor | None,
        probes: LinearMap | None,
    ) -> Tensor | None:
        """Of estimates `found` of measurements that are in a unit; the variance is not. Calibrations are for E|h|² = 1."""
        if calibration is not None and self.scale_free and (unit := self.unit(measured)) is not None:
            measured, found = power.in_unit(measured, unit), power.out_of_unit(found, 1 / unit)

        def one(part: Measurement, some: Tensor, kept: Estimate, chosen: LinearMap | None) -> Tensor | None:
            raw = self.spread(part, kept, chosen) if calibration is None or calibration.uses_raw else None
            return raw if calibration is None else calibration.variance(part, kept, raw, chosen)

        spread = self.spread_in_chunks(one, measured, found, probes)
        return spread if spread is None or unit is None else unit.square()[:, None] * spread

    def spread_in_chunks(
        self, one: ChunkSpread, measured: Measurement, found: Estimate, probes: LinearMap | None
    ) -> Tensor | None:
        """The variances of any number of samples from those of a few at a time; None where `one` has none."""

        def of_chunk(part: Measurement, some: Tensor) -> Tensor | None:
            chosen = probes if probes is None or probes.batch is None else probes.select(some)
            return one(part, some, selected(found, some), chosen)

        parts = chunk_by_chunk(of_chunk, measured, self.spread_chunk(measured))
        known = [part for part in parts if part is not None]
        return torch.cat(known) if known else None

    def spread_chunk(self, measured: Measurement) -> int | None:
        """How many samples `spread` is to get at once; None is all of them."""
        return _SPREAD_ENTRIES // self.signal_length**2

    def chunk(self, measured: Measurement) -> int | None:
        """How many samples `infer` is to get at once, for the sake of memory and speed; None is all of them."""
        return None

    def checked(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float | None) -> Measurement:
        """The inputs of `estimate` as a Measurement that fits the arrays and whose noise is known, or a ValueError."""
        measured = Measurement.checked(y, phi, 0.0 if noise_var is None else noise_var)
        if measured.phi.shape[1] != self.signal_length:
            raise ValueError(
                f"phi must have {self.signal_length} columns, the entries of vec(H) for which this {self.name} was made, "
                f"got {measured.phi.shape[1]}"
            )
        if noise_var is None:
            return Measurement(y, measured.phi, self.unknown_noise(y, measured.phi))
        return measured

    def unknown_noise(self, y: Tensor, phi: LinearMap) -> Tensor:
        """σ² where nobody gave it: [batch]."""
        return self.noise.estimate(y, phi)

    def parameters_learned(self) -> int:
        """How many real numbers it was given by training: parameters and buffers, a complex one counts twice."""
        held = [value for name, value in self.state_dict().items() if not name.startswith("noise.")]
        return sum(value.numel() * (2 if value.is_complex() else 1) for value in held)

    def nmse_db(self, batch: Batch) -> float:
        """NMSE in dB of its estimates of a batch."""
        return nmse_db(self.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal)

    def validation(
        self, problem: ChannelProblem, plan: Fit, count: int, snrs: tuple[float, ...] = SNRS_DB
    ) -> dict[str, Json]:
        """What a file says of a fit: NMSE in dB on `count` validation draws at each of `snrs`."""
        scores = [self.nmse_db(batch) for batch in validation_draws(problem, plan, count, snrs)]
        return {"validation_snr_db": list(snrs), "validation_nmse_db": list(scores)}


def validation_draws(
    problem: ChannelProblem, plan: Fit, count: int, snrs: tuple[float, ...] = SNRS_DB
) -> list[ChannelBatch]:
    """`count` validation draws at each SNR."""
    return [problem.sample(count, seed=plan.seed, split="validation", snr_db=snr) for snr in snrs]


class GaussianEstimator(ChannelEstimator):
    """ĥ = E[h | y] under a Gaussian prior that may depend on the measurement. A subclass gives the prior."""

    @abstractmethod
    def prior(self, measured: Measurement) -> Covariance:
        """R, one for all samples or one for each."""

    def infer(self, measured: Measurement) -> Estimate:
        return Estimate(condition(self.prior(measured), measured).mean)

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        return condition(self.prior(measured), measured, probes).variance
