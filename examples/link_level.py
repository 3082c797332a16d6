"""How many blocks does a better channel estimate save? Coded transmission in Sionna with our estimators in the receiver.

python examples/link_level.py [--scenario cdl_c_upa64x4] [--estimators ls,omp,gated-lmmse] [--snr 9:2:17] [--blocks 150]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

import chanest
from chanest.channels.sionna_backend import global_state_kept
from chanest.studies import STUDIES
from chanest.studies.commands import parse_snr
from chanest.studies.link import LinkStudy
from vlista_core.study import run_study
from vlista_core.study.commands import show
from vlista_core.terminal import names_in, step_bar


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", default="cdl_c_upa64x4", help="a shipped name or the path of a .toml file")
    parser.add_argument("--estimators", default="ls,omp,gated-lmmse", help="names with commas between")
    parser.add_argument("--snr", default="9:2:17", help="start:step:stop in dB, or numbers with commas between")
    parser.add_argument("--blocks", type=int, default=150, help="at each SNR; `chanest link` takes 1,000")
    parser.add_argument("--output", type=Path, default=Path("out/link"), help="where the figure and the report go")
    return parser.parse_args()


def in_your_own_simulation() -> None:
    """EstimatorBlock stands where a Sionna simulation has its LSChannelEstimator: same inputs, same outputs."""
    with global_state_kept():  # importing Sionna reseeds torch's global generator; this puts it back
        from sionna.phy.ofdm import LSChannelEstimator, ResourceGrid

        grid = ResourceGrid(
            num_ofdm_symbols=14, fft_size=24, subcarrier_spacing=30e3, num_streams_per_tx=2,
            pilot_pattern="kronecker", pilot_ofdm_symbol_indices=[2, 11],
        )  # fmt: skip
    from chanest.estimators.ls import LS
    from chanest.sionna import EstimatorBlock

    # Any estimator for channels of 2 streams × 4 antennas would do here, a trained one as well as least squares.
    block = EstimatorBlock(grid, LS(signal_length=2 * 4), interpolation_type="lin")
    noise = torch.Generator().manual_seed(1)
    y = torch.randn(
        5, 1, 4, 14, 24, dtype=torch.complex64, generator=noise
    )  # batch, rx, antennas, symbols, subcarriers
    h_hat, err_var = block(y, torch.tensor(0.1))
    theirs, _ = LSChannelEstimator(grid, interpolation_type="lin")(y, torch.tensor(0.1))
    print(f"EstimatorBlock: h_hat {[*h_hat.shape]}, err_var {[*err_var.shape]}")
    print(f"largest difference from Sionna's own LS: {float((h_hat - theirs).abs().max()):.1e}\n")


def main() -> None:
    chosen = arguments()
    scenario = chanest.load_scenario(chosen.scenario)
    in_your_own_simulation()

    # The link behind a front end. A block is one channel: training symbols, one beam each, from which the estimator has
    # to find H; then two data streams through the last two beams, 16-QAM with the 5G LDPC code. The estimate of what the
    # data meets, and the variance of its errors, go to Sionna's LMMSE equaliser, demapper and decoder.
    study = LinkStudy(
        scenario=scenario,
        receivers=(*names_in(chosen.estimators), "sionna-ls", "perfect"),
        snr_db=parse_snr(chosen.snr),
        blocks=chosen.blocks,
        validation=50,  # blocks that tell how large an estimator's errors are, where it does not know itself
    )
    print(f"{scenario.name}: {scenario.description}")
    efficiency = f"{study.peak_efficiency:g} bits per resource element with training counted in"
    print(f"{study.information_bits} bits per block, {efficiency}")
    with step_bar(f"{study.blocks} blocks") as progress:
        run_study(study, chosen.output, restart=True, progress=progress)

    # The figure, the tables and one page that holds everything.
    show(chosen.output, STUDIES)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
