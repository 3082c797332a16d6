"""5G NR PUSCH over slots of moving users: slot-lmmse in Sionna's PUSCHReceiver beside Sionna's own estimators.

CHANEST_WEIGHTS=FOLDER python benchmarks/pusch.py [--blocks 200] [--snr 0,4,8] [--links slot_100ns_3mps,…]

Four layers of four antennas, DMRS of type 1 with one additional position, so that two layers share resource elements under a
code. Channels are those of `benchmarks/arrays/slot_*.toml`, and so are the weights, which `chanest train FILE -e slot-lmmse`
has put into FOLDER with pilots of another pattern. Sionna's LMMSE has the covariance of each axis from 1,000 training slots and
the order of the axes that is best on validation slots. All have the same bits, channels and noise. NMSE is of the whole grid.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import chanest
from chanest.channels.sionna_backend import global_state_kept
from chanest.link import LinkSetup
from chanest.link.slots import covariances, link_of
from chanest.problem import ChannelProblem
from chanest.sionna import EstimatorBlock
from vlista_core.draws import Split
from vlista_core.estimate import Estimator

with global_state_kept():
    from sionna.phy.nr import (
        PUSCHConfig,
        PUSCHLMMSEChannelEstimator,
        PUSCHLSChannelEstimator,
        PUSCHReceiver,
        PUSCHTransmitter,
    )

LINKS = ("slot_100ns_3mps", "slot_100ns_30mps", "slot_300ns_3mps", "slot_300ns_30mps")
ORDERS = ("t-f-s", "f-t-s", "s-t-f", "s-f-t")
VALIDATION, BATCH, TRAINING = 16, 20, 1000
LAYERS, BLOCKS_OF_TWELVE = 4, 6

Estimate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=200, help="at each SNR of each link")
    parser.add_argument("--snr", default="0,4,8", help="in dB, with commas between")
    parser.add_argument("--links", default=",".join(LINKS))
    options = parser.parse_args()
    print("| link | SNR | receiver | NMSE | BER | BLER |\n|---|---:|---|---:|---:|---:|")
    for name in options.links.split(","):
        scenario = chanest.load_scenario(Path(__file__).parent / "arrays" / f"{name}.toml")
        problem = chanest.ChannelProblem(scenario)
        known = covariances(link_of(LinkSetup(scenario=scenario, modulation="qpsk")), TRAINING)
        ours = chanest.get_estimator("slot-lmmse", problem, substitute=False)
        for snr in map(float, options.snr.split(",")):
            with torch.no_grad(), global_state_kept():
                compare(name, problem, snr, options.blocks, known, ours)


def compare(
    name: str, problem: ChannelProblem, snr_db: float, blocks: int, known: tuple[Tensor, ...], ours: Estimator
) -> None:
    """Print a row for every receiver."""
    sender = transmitter()
    grid, no = sender.resource_grid, torch.tensor(10 ** (-snr_db / 10))
    shape = sender._dmrs_length, sender._dmrs_additional_position, sender._num_cdm_groups_without_data
    validation = slots(sender, problem, VALIDATION, 0, no, "validation")

    def lmmse(order: str) -> Estimate:
        made: Estimate = PUSCHLMMSEChannelEstimator(grid, *shape, *known, order=order)
        return made

    best = min(ORDERS, key=lambda order: nmse_db(lmmse(order)(validation[0], no)[0], validation[2]))
    receivers: dict[str, Estimate | str] = {
        "Sionna LS, linear": PUSCHLSChannelEstimator(grid, *shape, interpolation_type="lin"),
        f"Sionna LMMSE, {best}": lmmse(best),
        "slot-lmmse": EstimatorBlock(grid, ours),
        "perfect CSI": "perfect",
    }
    totals = {receiver: torch.zeros(4, dtype=torch.float64) for receiver in receivers}
    for start in range(0, blocks, BATCH):
        y, bits, truth = slots(sender, problem, min(BATCH, blocks - start), start, no, "test")
        for receiver, estimate in receivers.items():
            decoder = PUSCHReceiver(sender, channel_estimator=estimate)
            wrong = (decoder(y, no, truth) if isinstance(estimate, str) else decoder(y, no)) != bits
            h_hat = truth if isinstance(estimate, str) else estimate(y, no)[0]
            error, power = ((each.abs().square().sum(dtype=torch.float64)) for each in (h_hat - truth, truth))
            rates = wrong.double().mean((1, 2)).sum(), wrong.flatten(1).any(1).double().sum()
            totals[receiver] += torch.stack([error, power, *rates])
    for receiver, (error, power, ber, bler) in totals.items():
        level = f"{10 * math.log10(error / power):.1f}" if error else "–"
        figures = f"{level} | {float(ber) / blocks:.4f} | {float(bler) / blocks:.3f}"
        print(f"| {name} | {snr_db:g} | {receiver} | {figures} |", flush=True)


def transmitter() -> PUSCHTransmitter:
    settings = PUSCHConfig(num_antenna_ports=LAYERS, num_layers=LAYERS)
    settings.carrier.subcarrier_spacing, settings.carrier.n_size_grid = 30, BLOCKS_OF_TWELVE
    settings.dmrs.additional_position = 1
    settings.tb.mcs_index = 4
    return PUSCHTransmitter(settings, return_bits=False)


def slots(
    sender: PUSCHTransmitter, problem: ChannelProblem, count: int, start: int, no: Tensor, split: Split
) -> tuple[Tensor, Tensor, Tensor]:
    """What arrives, the bits, and the channel in Sionna's order, of slots that depend on their numbers alone."""
    h = problem.channels(count, seed=1, split=split, start=start)
    h = h.reshape(count, problem.snapshots, problem.subcarriers, LAYERS, -1)
    generator = torch.Generator().manual_seed(10_000 * (split == "test") + start)
    bits = torch.randint(0, 2, (count, 1, sender._tb_size), generator=generator).to(h.real.dtype)
    received = count, h.shape[-1], problem.snapshots, problem.subcarriers
    noise = torch.randn(received, dtype=h.dtype, generator=generator)
    y = torch.einsum("blftr,btlf->brlf", h, sender(bits)[:, 0]) + no.sqrt() * noise
    return y[:, None], bits, h.permute(0, 4, 3, 1, 2)[:, None, :, None]


def nmse_db(h_hat: Tensor, truth: Tensor) -> float:
    return float(10 * ((h_hat - truth).abs().square().sum() / truth.abs().square().sum()).log10())


if __name__ == "__main__":
    main()
