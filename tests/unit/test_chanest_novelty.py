"""Novelty: alarms come as often as the level says, a score is the gradient it claims to be, real changes are noticed."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor

import chanest
from chanest.arrays import upa
from chanest.bases.estimator import ChannelEstimator
from chanest.estimators.gmm import GMM
from chanest.estimators.ls import LS
from chanest.novelty import CHANGES, NoveltyDetector, Score, change_names, changed_frames
from chanest.novelty.detector import Reference
from chanest.novelty.scores import Shape, antennas, likelihood, residual
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario
from chanest.studies import STUDIES
from chanest.studies.novelty import HOME, NoveltyStudy
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import solve_hermitian
from vlista_core.linops import as_map
from vlista_core.study import read_study, run_study

TINY = Scenario.model_validate(
    {
        "name": "tiny",
        "bs": {"rows": 2, "columns": 2, "yaw_spread": 60.0},
        "ue": {"rows": 1, "columns": 2},
        "frontend": {"pilots": 3},
    }
)
SILENT = torch.zeros(4, 8, dtype=torch.complex64)


def _powers(estimator: ChannelEstimator, measured: Measurement, shape: Shape) -> Tensor:
    """Skewed, correlated, and another at every SNR."""
    return measured.y.abs().square().cumsum(1)


def _frames(count: int, snr_db: Tensor | float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """y, Φ and the noise of frames that are heavy-tailed noise."""
    generator = torch.Generator().manual_seed(seed)
    noise_var = 10 ** (-torch.as_tensor(snr_db).expand(count) / 10)
    y = torch.randn(count, 4, dtype=torch.complex64, generator=generator) * (1 + noise_var).sqrt()[:, None]
    return y * torch.rand(count, 1, generator=generator), SILENT, noise_var


def _detector_of_powers(*snr_db: float, frames: int = 4000) -> NoveltyDetector:
    detector = NoveltyDetector(Score("", "ls", _powers), LS(8), (1, 4, 2), (), level=0.1)
    references = [Reference.of(snr, detector.features(*_frames(frames, snr, int(snr)))) for snr in snr_db]
    return NoveltyDetector(detector.score, detector.estimator, detector.shape, references, level=0.1)


@functools.cache
def _home() -> ChannelProblem:
    return ChannelProblem(chanest.load_scenario("cdl_c_upa64x4"))


@functools.cache
def _detector(estimator: str, frames: int) -> NoveltyDetector:
    return NoveltyDetector.fit(_home(), estimator=chanest.get_estimator(estimator, _home()), frames=frames)


@pytest.mark.parametrize("length", [1, 5, 20])
def test_false_alarms_come_at_the_level(length: int) -> None:
    detector = _detector_of_powers(10.0)
    white = detector.whiten(*_frames(20_000, 10.0, 1)).reshape(-1, length, 4)
    p_values = detector.judge(white, [10.0] * length)[1]
    for level in (0.05, 0.5):
        spread = 4 * (level * (1 - level) / len(white)) ** 0.5 + 0.01
        assert abs(float((p_values <= level).double().mean()) - level) < spread


def test_alarms_come_at_the_level_where_the_snr_varies_between_those_of_the_reference() -> None:
    detector = _detector_of_powers(0.0, 5.0, 10.0)
    snr = 10 * torch.rand(20, generator=torch.Generator().manual_seed(0))
    white = detector.whiten(*_frames(8000, snr.repeat(400), 1)).reshape(400, 20, 4)
    alarms = float((detector.judge(white, snr.tolist())[1] <= 0.1).double().mean())
    assert abs(alarms - 0.1) < 0.06
    with pytest.raises(ValueError, match=r"reference for an SNR of 0 … 10 dB, but a frame has 11\.0 dB"):
        detector.whiten(*_frames(5, 11.0, 1))


class _Wiener(ChannelEstimator):
    """LMMSE with a given covariance."""

    name = "wiener"

    def __init__(self, covariance: Tensor) -> None:
        super().__init__(len(covariance))
        self.covariance = covariance

    build = configuration = from_configuration = None  # type: ignore[assignment]

    def infer(self, measured: Measurement) -> Estimate:
        phi = measured.phi.materialize()
        return Estimate((self.covariance @ phi.mH @ _whitened(measured, phi, self.covariance))[..., 0])


_Wiener.__abstractmethods__ = frozenset()


def _whitened(measured: Measurement, phi: Tensor, covariance: Tensor) -> Tensor:
    noise = measured.noise_var[:, None, None] * torch.eye(phi.shape[1])
    return solve_hermitian(phi @ covariance @ phi.mH + noise, measured.y[..., None])


def test_the_score_of_an_antenna_is_the_gradient_by_its_gain() -> None:
    """Of -yᴴC⁻¹y, against differences: 2 Re for the gain of an antenna, -2 Im for its phase."""
    generator = torch.Generator().manual_seed(3)
    draw = functools.partial(torch.randn, dtype=torch.complex128, generator=generator)
    factor, phi, y = draw(6, 6), draw(2, 5, 6), draw(2, 5)
    covariance = factor @ factor.mH
    measured = Measurement(y, as_map(phi), torch.tensor([0.3, 0.7], dtype=torch.float64))
    score = torch.view_as_complex(antennas(_Wiener(covariance), measured, (1, 3, 2)).reshape(2, 5, 2))

    def fit(gains: Tensor) -> Tensor:
        changed = gains[:, None] * covariance * gains.conj()
        return -(y.conj() * _whitened(measured, phi, changed)[..., 0]).sum(1).real

    entries = {0: [0, 1], 2: [4, 5], 3: [0, 2, 4]}
    for antenna, own in entries.items():
        for direction, expected in ((1.0, 2 * score[:, antenna].real), (1j, 2 * score[:, antenna].imag)):
            step = torch.zeros(6, dtype=torch.complex128)
            step[own] = torch.tensor(1e-5 * direction, dtype=torch.complex128)
            change = (fit(1 + step) - fit(1 - step)) / 2e-5
            torch.testing.assert_close(change.abs(), expected.abs(), rtol=1e-6, atol=1e-6)


def test_likelihood_is_the_density_of_the_mixture_and_residual_in_units_of_the_noise() -> None:
    mixture = GMM(upa(1, 2), upa(1, 2), structure="kronecker", components=2)
    mixture.components.transmit[1] *= 3.0  # type: ignore[operator, index]
    mixture.log_prior = torch.tensor([0.25, 0.75]).log()
    generator = torch.Generator().manual_seed(0)
    phi, y = (torch.randn(*size, dtype=torch.complex64, generator=generator) for size in ((3, 2, 4), (3, 2)))
    measured = Measurement(y, as_map(phi), torch.full((3,), 0.5))
    density = torch.zeros(3)
    for prior, scale in ((0.25, 1.0), (0.75, 3.0)):
        covariance = scale * phi @ phi.mH + 0.5 * torch.eye(2)
        distance = (y.conj() * solve_hermitian(covariance, y[..., None])[..., 0]).sum(1).real
        density += prior * (-distance).exp() / torch.linalg.det(covariance).real
    torch.testing.assert_close(likelihood(mixture, measured, (1, 2, 2))[:, 0], density.log() / 2, rtol=1e-4, atol=1e-4)
    nothing = _Wiener(torch.zeros(4, 4, dtype=torch.complex64))
    expected = (y.abs().square().mean(1) / 0.5).log()
    torch.testing.assert_close(residual(nothing, measured, (1, 2, 2))[:, 0], expected)


def test_a_broken_antenna_is_broken_and_nothing_else() -> None:
    problem = ChannelProblem(TINY)
    names = change_names(TINY)
    assert "cdl-a" in names
    assert "cdl-c" not in names
    for name, axis in (("blocked-bs", 1), ("phase-bs", 1), ("blocked-ue", 2), ("phase-ue", 2)):
        batch = changed_frames(problem, name, 8, seed=2, snr_db=200.0, hold=4)
        torch.testing.assert_close(batch.y, batch.phi.apply(batch.signal), rtol=1e-4, atol=1e-4)
        plain = problem.sample(8, seed=2, start=1_000_000 * (1 + list(CHANGES).index(name)), snr_db=200.0)
        grids = [each.signal.reshape(8, 4, 2) for each in (batch, plain)]
        other = (grids[0] != grids[1]).any(3 - axis)
        assert other.sum(1).tolist() == [1] * 8
        assert [int(row.nonzero()) for row in other[:4]] == [int(other[0].nonzero())] * 4
        gain = (grids[0] / grids[1]).transpose(1, axis)[torch.arange(8), other.int().argmax(1)]
        torch.testing.assert_close(gain, torch.full_like(gain, CHANGES[name].gain), rtol=1e-4, atol=1e-4)
    part = changed_frames(problem, "blocked-bs", 3, seed=2, start=5, snr_db=200.0, hold=4)
    whole = changed_frames(problem, "blocked-bs", 8, seed=2, snr_db=200.0, hold=4)
    assert torch.equal(part.y, whole.y[5:])


def test_other_surroundings_have_the_arrays_sizes_and_other_channels() -> None:
    problem, home = ChannelProblem(TINY), ChannelProblem(TINY).sample(4, seed=2).signal
    for name in ("cdl-a", "tilt", "spacing"):
        assert changed_frames(problem, name, 4, seed=2).signal.shape == home.shape
    tilted, stretched = (CHANGES[name].scenario(TINY) for name in ("tilt", "spacing"))  # type: ignore[misc]
    assert tilted is not None and stretched is not None  # noqa: PT018
    assert (tilted.bs.tilt, stretched.bs.spacing, stretched.ue.spacing) == (20.0, 0.6, 0.5)


@pytest.mark.parametrize("name", ["spacing", "blocked-bs", "phase-bs"])
def test_the_hard_changes_are_noticed_from_twenty_frames(name: str) -> None:
    detector = _detector("gated-lmmse", 600)
    batch = changed_frames(_home(), name, 20, seed=9, snr_db=10.0)
    verdict = detector.test(batch.y, batch.phi, batch.noise_var)
    assert verdict.novel
    assert verdict.p_value < 0.01
    assert verdict.scores.shape == (20,)


def test_a_cheaper_estimator_notices_most_changes_and_leaves_home_alone() -> None:
    detector = _detector("atom-lmmse", 1000)
    home = _home().sample(200, seed=9, snr_db=10.0)
    white = detector.whiten(home.y, home.phi, home.noise_var)
    torch.testing.assert_close(detector.scores(home.y, home.phi, home.noise_var), white.square().mean(1))
    p_values = detector.judge(white.reshape(10, 20, -1), [10.0] * 20)[1]
    assert int((p_values <= 0.05).sum()) <= 3
    for name in ("cdl-a", "cdl-b", "cdl-d", "cdl-e", "tilt", "phase-ue"):
        batch = changed_frames(_home(), name, 20, seed=9, snr_db=10.0)
        assert detector.test(batch.y, batch.phi, batch.noise_var).novel, name


def test_the_papers_t_test_is_of_one_feature() -> None:
    problem = ChannelProblem(TINY)
    detector = NoveltyDetector.fit(problem, "residual", estimator=_Wiener(torch.eye(8) + 0j), frames=300)
    batch = problem.sample(20, seed=4, snr_db=10.0)
    assert detector.t_test(batch.y, batch.phi, batch.noise_var) > 1e-3
    assert detector.t_test(2 * batch.y, batch.phi, batch.noise_var) < 1e-4
    with pytest.raises(ValueError, match="got 4 features and 5 frames"):
        _detector_of_powers(10.0).t_test(*_frames(5, 10.0, 1))


def test_a_study_is_stored_read_and_told(tmp_path: Path) -> None:
    study = NoveltyStudy(
        scenario=TINY, estimator="ls", changes=("tilt",), snr_db=(5.0, 10.0), lengths=(1, 10), frames=40,
        home_frames=60, reference_frames=100,
    )  # fmt: skip
    found = run_study(study, tmp_path)
    assert not found.faults
    rows = study.streams(found.frame)
    counts = rows.groupby("change", sort=False)["streams"].apply(list).to_dict()
    assert counts == {HOME: [60, 6, 60, 6], "tilt": [40, 4, 40, 4]}
    assert (rows["auroc"].isna() == (rows["change"] == HOME)).all()
    assert "5.0% asked for" in study.headline(found.frame)
    assert len(study.tables(found.frame)) == 5
    assert tuple(read_study(tmp_path, STUDIES).records) == found.records


def test_a_change_added_later_is_judged_by_the_same_home_frames(tmp_path: Path) -> None:
    few = {
        "scenario": TINY,
        "estimator": "ls",
        "lengths": (5,),
        "frames": 20,
        "home_frames": 40,
        "reference_frames": 100,
    }
    whole = run_study(NoveltyStudy.model_validate({**few, "changes": ("tilt", "spacing")}), tmp_path / "whole")
    run_study(NoveltyStudy.model_validate({**few, "changes": ("tilt",)}), tmp_path / "grown")
    grown = run_study(NoveltyStudy.model_validate({**few, "changes": ("spacing",)}), tmp_path / "grown")
    assert [record.row for record in grown.records] == [record.row for record in whole.records]


def test_a_study_that_cannot_be_run_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for changes, message in (
        ({"scores": ("likelihood",), "estimator": "ls"}, "needs a gmm"),
        ({"estimator": "ls", "reference_frames": 40}, "frames to learn from must be at least 48"),
        ({"estimator": "ls", "level": 1.0}, "level must be at least"),
        ({"estimator": "ls", "lengths": (0,)}, "lengths must be"),
        ({"estimator": "ls", "frames": 10}, "frames must be"),
        ({"estimator": "ls", "changes": ("cdl-c",)}, "no change 'cdl-c' of tiny"),
    ):
        with pytest.raises(ValueError, match=message):
            run_study(NoveltyStudy.model_validate({"scenario": TINY, **changes}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_mistakes_are_told_in_a_sentence() -> None:
    problem = ChannelProblem(TINY)
    ls = LS(8)
    with pytest.raises(ValueError, match="unknown score 'colour'; known are antennas"):
        NoveltyDetector.fit(problem, "colour")
    for level in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match=r"level must be at least 0\.001 and less than 1"):
            NoveltyDetector.fit(problem, estimator=ls, level=level)
    with pytest.raises(ValueError, match="frames to learn from must be at least 48, 4 for each of its 12 features"):
        NoveltyDetector.fit(problem, estimator=ls, frames=40)
    with pytest.raises(ValueError, match="frames must be an integer of at least 4, got 0"):
        NoveltyDetector.fit(problem, estimator=ls, frames=0)
    with pytest.raises(ValueError, match="snr_db must be one or more finite numbers"):
        NoveltyDetector.fit(problem, estimator=ls, snr_db=())
    with pytest.raises(ValueError, match="channels of 6 entries; tiny has 8"):
        NoveltyDetector.fit(problem, estimator=LS(6))
    with pytest.raises(ValueError, match=r"gated-lmmse has no weights for tiny"):
        NoveltyDetector.fit(problem)
    for score, wanted in (("likelihood", "needs a gmm"), ("dictionary", "needs a vlista")):
        with pytest.raises(ValueError, match=wanted):
            NoveltyDetector.fit(problem, score, estimator=ls)
    detector = NoveltyDetector.fit(problem, estimator=ls, frames=60)
    batch = problem.sample(3, seed=0, snr_db=10.0)
    with pytest.raises(ValueError, match="noise_var must be positive"):
        detector.features(batch.y, batch.phi, 0.0)
    with pytest.raises(ValueError, match="y must not be empty"):
        detector.test(batch.y[:0], batch.phi, 0.1)
    with pytest.raises(ValueError, match="phi must have 8 columns"):
        detector.test(batch.y, torch.zeros(3, batch.y.shape[1], 5, dtype=torch.complex64), 0.1)
    with pytest.raises(ValueError, match="no change 'cdl-c' of tiny; known are cdl-a"):
        changed_frames(problem, "cdl-c", 3, seed=0)
