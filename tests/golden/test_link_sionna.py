"""The link against Sionna itself: same estimates, same bits as its LSChannelEstimator; variances that help."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import chanest
from chanest.channels.sionna_backend import global_state_kept
from chanest.estimators.ls import LS
from chanest.frontend import BeamformingMap
from chanest.link import LinkSetup
from chanest.link.blocks import Blocks, Link, over_grid
from chanest.link.receivers import receiver, usable
from chanest.sionna import EstimatorBlock, training_grid
from chanest.studies import STUDIES
from chanest.studies.block_errors import BlockErrors
from chanest.studies.link import LinkStudy
from vlista_core.study import read_study

with global_state_kept():
    from sionna.phy import config
    from sionna.phy.channel import ApplyOFDMChannel
    from sionna.phy.fec.ldpc import LDPC5GDecoder, LDPC5GEncoder
    from sionna.phy.mapping import Demapper, Mapper
    from sionna.phy.mimo import StreamManagement
    from sionna.phy.ofdm import LMMSEEqualizer, LSChannelEstimator, ResourceGrid, ResourceGridMapper

STREAMS, ANTENNAS, BATCH = 4, 4, 24
TINY = "[bs]\nrows = 4\ncolumns = 2\nyaw_spread = 60.0\n[ue]\nrows = 2\ncolumns = 1\n[frontend]\npilots = 6\n"


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.complex64, generator=generator)


@pytest.fixture(scope="module")
def grid() -> ResourceGrid:
    with global_state_kept():
        config.seed = 1  # of the pilots, which decide bits that are all but tied
        return ResourceGrid(
            8, 16, 30e3, num_streams_per_tx=STREAMS, num_guard_carriers=(1, 2), dc_null=True,
            pilot_pattern="kronecker", pilot_ofdm_symbol_indices=[1, 5],
        )  # fmt: skip


def test_with_orthogonal_pilots_our_least_squares_is_sionnas_bit_for_bit(grid: ResourceGrid) -> None:
    generator = torch.Generator().manual_seed(3)
    symbols = grid.num_data_symbols
    with global_state_kept():
        encoder = LDPC5GEncoder(symbols * 2, symbols * 4, num_bits_per_symbol=4)
        decoder, mapper, demapper = LDPC5GDecoder(encoder), Mapper("qam", 4), Demapper("app", "qam", 4)
        equaliser = LMMSEEqualizer(grid, StreamManagement(np.array([[1]]), STREAMS))
        bits = torch.randint(2, (BATCH, 1, STREAMS, encoder.k), generator=generator).float()
        sent = ResourceGridMapper(grid)(mapper(encoder(bits)))
        h = _random(generator, BATCH, 1, ANTENNAS, 1, STREAMS, 1, 1).expand(-1, -1, -1, -1, -1, 8, 16)
        no = torch.tensor(10**-1.2)
        y = ApplyOFDMChannel()(sent, h) + no.sqrt() * _random(generator, BATCH, 1, ANTENNAS, 8, 16)
        decided, estimates = [], []
        for block in (LSChannelEstimator(grid, interpolation_type="lin"), _ours(grid, "lin")):
            estimates.append(block(y, no))
            x_hat, no_eff = equaliser(y, *estimates[-1], no)
            decided.append(decoder(demapper(x_hat, no_eff)))
    (h_theirs, v_theirs), (h_ours, v_ours) = estimates
    assert h_ours.shape == h_theirs.shape == (BATCH, 1, ANTENNAS, 1, STREAMS, 8, 12)
    torch.testing.assert_close(h_ours, h_theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(v_ours, v_theirs, rtol=1e-4, atol=1e-6)
    theirs, ours = decided
    assert torch.equal(ours, theirs)
    wrong = (ours != bits).float().mean()
    assert 0.0 < wrong < 0.2, "the comparison is empty unless some bits are wrong and most are right"


def _ours(grid: ResourceGrid, interpolation: str = "nn") -> EstimatorBlock:
    return EstimatorBlock(grid, LS(STREAMS * ANTENNAS), interpolation_type=interpolation)


def test_several_receivers_and_transmitters_are_separate_channels() -> None:
    generator = torch.Generator().manual_seed(4)
    with global_state_kept():
        grid = ResourceGrid(
            4, 8, 30e3, num_tx=2, num_streams_per_tx=2, pilot_pattern="kronecker", pilot_ofdm_symbol_indices=[0]
        )
        y, no = _random(generator, 3, 2, 5, 4, 8), torch.tensor([0.1, 0.2, 0.3])
        theirs = LSChannelEstimator(grid)(y, no)
        ours = EstimatorBlock(grid, LS(2 * 5))(y, no)
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1])


def test_a_sparse_estimator_drops_in_and_knows_how_far_off_it_is(tmp_path: Path) -> None:
    """8 streams from the antennas of a base station to 2 at a user: SBL on the angular grid beside least squares."""
    (tmp_path / "tiny.toml").write_text(TINY)
    problem = chanest.ChannelProblem(chanest.load_scenario(str(tmp_path / "tiny.toml")))
    with global_state_kept():
        grid = ResourceGrid(3, 8, 30e3, num_streams_per_tx=8, pilot_pattern="kronecker", pilot_ofdm_symbol_indices=[0])
        generator, no = torch.Generator().manual_seed(5), torch.tensor(1.0)
        h = problem.sample(64, seed=1, snr_db=0.0).matrices()[:, :, :, None, :, None, None].expand(*[-1] * 5, 3, 8)
        sent = ResourceGridMapper(grid)(torch.zeros(64, 1, 8, grid.num_data_symbols, dtype=torch.complex64))
        y = ApplyOFDMChannel()(sent, h) + _random(generator, 64, 1, 2, 3, 8)
        least, _ = LSChannelEstimator(grid)(y, no)
        h_hat, err_var = EstimatorBlock(grid, chanest.get_estimator("sbl", problem))(y, no)
    error, before = ((each - h).abs().square().mean() for each in (h_hat, least))
    assert error < 0.8 * before
    assert 0.3 * error < err_var.mean() < 3 * error


def _link(scenario: str, blocks: int, snr_db: float, **settings: float) -> tuple[Link, list[Blocks], Blocks]:
    small = {"scenario": chanest.load_scenario(scenario), "data_symbols": 8, "subcarriers": 4, **settings}
    link = Link(LinkSetup.model_validate(small))
    validation = [link.draw(64, seed=1, split="validation", start=0, snr_db=snr_db)]
    return link, validation, link.draw(blocks, seed=1, split="test", start=0, snr_db=snr_db)


@pytest.mark.parametrize("scenario", ["cdl_c_upa64x4", "hybrid_64x16"])
def test_behind_a_front_end_least_squares_has_what_sionna_measures_on_the_data_beams(scenario: str) -> None:
    link, validation, blocks = _link(scenario, 16, 10.0)
    (ours, v_ours), (theirs, v_theirs) = (receiver(name, link, validation)[0](blocks) for name in ("ls", "sionna-ls"))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert float(v_theirs.min()) == float(v_theirs.max()) == pytest.approx(0.1)
    assert float(v_ours.mean()) == pytest.approx(0.1, rel=0.15)


def test_the_grid_receives_training_through_its_beams_and_data_through_the_last_ones() -> None:
    link, _, blocks = _link("hybrid_64x16", 6, 300.0)
    batch = blocks.training
    torch.testing.assert_close(batch.y, batch.phi.apply(batch.signal))
    with global_state_kept():
        symbols = Mapper("qam", 4)(LDPC5GEncoder(link.setup.information_bits, link.setup.coded_bits, 4)(blocks.bits))
    sent = symbols.reshape(6, 2, 8, 4)
    assert isinstance(batch.phi, BeamformingMap)
    assert batch.phi.weights is not None
    h, beams, combiner = batch.matrices()[:, 0], batch.phi.transmit[:, :, -2:], batch.phi.weights[:, -1]
    identity = torch.eye(4, dtype=h.dtype).expand(6, 4, 4)
    torch.testing.assert_close(combiner.mH @ combiner, identity, rtol=1e-4, atol=1e-4)
    data = torch.einsum("bcs,bstf->bctf", combiner.mH @ h @ beams, sent)
    torch.testing.assert_close(blocks.y[:, 0, :, 64:], data, rtol=1e-3, atol=1e-3)


def test_a_better_estimate_loses_fewer_blocks_and_perfect_knowledge_fewest() -> None:
    link, validation, blocks = _link("cdl_c_upa64x4", 96, 8.0, streams=1)
    lost = {}
    for name in ("ls", "gated-lmmse", "perfect"):
        decided = link.decode(blocks, *receiver(name, link, validation)[0](blocks))
        lost[name] = int((decided != blocks.bits).any(1).sum())
    assert lost["perfect"] < lost["gated-lmmse"] < lost["ls"]


def test_telling_the_equaliser_of_errors_saves_blocks() -> None:
    link, validation, blocks = _link("cdl_c_upa64x4", 160, 12.0, streams=2, rate=0.4)
    h_hat, err_var = receiver("omp", link, validation)[0](blocks)
    told, blind = (
        int((link.decode(blocks, h_hat, each) != blocks.bits).any(1).sum()) for each in (err_var, torch.zeros(()))
    )
    assert told < blind


def test_the_genie_and_sionnas_lmmse_know_how_large_their_errors_are() -> None:
    link, validation, blocks = _link("cdl_c_upa64x4", 80, 5.0)
    truth = blocks.effective.mT
    for name in ("genie-angles", "sionna-lmmse"):
        h_hat, err_var = receiver(name, link, validation)[0](blocks)
        error = (h_hat[:, 0, :, 0, :, -1, -1] - truth).abs().square()
        assert float(error.mean()) == pytest.approx(float(err_var[..., -1, -1].mean()), rel=0.2), name
        assert float(error.mean()) < 10**-0.5, "worse than what least squares has"


def test_what_has_diverged_counts_as_no_estimate_and_loses_its_block() -> None:
    link, _, blocks = _link("cdl_c_upa64x4", 3, 30.0)
    h_hat = over_grid(link, blocks.effective).clone()
    h_hat[0], h_hat[1] = torch.nan, 1e20
    lost = (link.decode(blocks, usable(h_hat), torch.tensor(1e-3)) != blocks.bits).any(1)
    assert lost.tolist() == [True, True, False]


def test_blocks_depend_on_their_index_alone_and_leave_the_generators_be() -> None:
    before = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    link, _, blocks = _link("cdl_c_upa64x4", 5, 10.0)
    one = link.draw(1, seed=1, split="test", start=3, snr_db=10.0)
    assert torch.equal(one.bits[0], blocks.bits[3])
    torch.testing.assert_close(one.y[0], blocks.y[3], rtol=1e-4, atol=1e-5)
    receiver("ls", link, [blocks])[0](blocks)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state(legacy=False)["state"]["key"])  # noqa: NPY002


def test_what_does_not_fit_the_grid_is_one_sentence(grid: ResourceGrid) -> None:
    no = torch.tensor(0.1)
    with pytest.raises(ValueError, match=r"y must have shape \[batch, rx, rx antennas, 8, 16\]"):
        _ours(grid)(torch.zeros(2, 1, 4, 8, 15, dtype=torch.complex64), no)
    with pytest.raises(ValueError, match="made for channels of 16 entries, but 4 streams to 2 antennas have 8"):
        _ours(grid)(torch.zeros(2, 1, 2, 8, 16, dtype=torch.complex64), no)
    with pytest.raises(ValueError, match="same at all antennas"):
        _ours(grid)(torch.zeros(1, 1, 4, 8, 16, dtype=torch.complex64), torch.tensor([[[0.1, 0.1, 0.2, 0.1]]]))
    with global_state_kept():
        crowded = ResourceGrid(
            2, 4, 30e3, num_streams_per_tx=2, pilot_pattern="kronecker", pilot_ofdm_symbol_indices=[0]
        )
        crowded.pilot_pattern.pilots = torch.ones(1, 2, 4, dtype=torch.complex64)
    with pytest.raises(ValueError, match="pilots must be orthogonal"):
        EstimatorBlock(crowded, LS(8))
    with pytest.raises(ValueError, match="must be a training_grid of 4 pilots"):
        EstimatorBlock(grid, LS(16), pilots=4)
    with pytest.raises(ValueError, match="room for 9 pilots"):
        EstimatorBlock(grid, LS(16), pilots=9)


def test_beams_and_estimators_of_other_arrays_are_one_sentence() -> None:
    block = EstimatorBlock(training_grid(6, 2, 4, 3), LS(8 * 4), pilots=6)
    y, no = torch.zeros(2, 1, 4, 10, 3, dtype=torch.complex64), torch.tensor(0.1)
    beams = _random(torch.Generator().manual_seed(1), 2, 16, 6)
    with pytest.raises(
        ValueError, match=r"must have 32 columns, the entries of vec\(H\) for which this ls was made, got 64"
    ):
        block(y, no, beams)
    with pytest.raises(ValueError, match="call it with their beams"):
        block(y, no)
    with pytest.raises(ValueError, match=r"beams must have shape \[2, N_t, 6\]"):
        block(y, no, beams[:, :, :5])
    with pytest.raises(ValueError, match="orthonormal columns"):
        block(y, no, beams, 2 * torch.eye(4, dtype=beams.dtype).expand(2, 6, 4, 4))
    with pytest.raises(ValueError, match="knows no variance of its errors"):
        block(y, no, beams[:, :8])
    zero, told = EstimatorBlock(training_grid(6, 2, 4, 3), LS(8 * 4), pilots=6, err_var=0.25)(y, no, beams[:, :8])
    assert zero.shape == told.shape == (2, 1, 4, 1, 2, 10, 3)
    assert bool((told == 0.25).all())


def test_the_recorded_run_shows_what_the_note_says() -> None:
    read = read_study(Path(__file__).parents[2] / "docs" / "results" / "link", STUDIES)
    assert isinstance(read.study, LinkStudy)
    assert read.study.blocks >= 1000
    errors = BlockErrors(read.study, read.frame)
    needed = {name: errors.needed_snr(name, "estimated") for name in read.study.receivers}
    best, least, genie = needed["gated-lmmse"], needed["ls"], needed["genie-angles"]
    assert best is not None
    assert least is not None
    assert genie is not None
    assert best < least - 1
    assert needed["omp"] is None or best < needed["omp"] - 1
    assert best < genie + 1
    assert least == pytest.approx(needed["sionna-ls"], abs=0.1)
    for name in set(read.study.receivers) - {"perfect"}:
        assert sum(errors.curve(name, "estimated", "bler")) < sum(errors.curve(name, "zero", "bler")), name
