"""One slot, interpolated along its axes in turn or estimated in one step: our slot-lmmse beside Sionna's own estimators.

python benchmarks/slots.py [--blocks 200] [--snr 0,4,8] [--training 4000]

Four links of `slot_4x4`, with a delay spread of 100 and of 300 ns and users at 3 and at 30 m/s: NMSE of the whole grid, BER,
BLER on the same blocks, milliseconds per slot. slot-lmmse is trained for each; Sionna's LMMSE has the covariance of each axis
from 1,000 training slots, and takes the axes in the order that is best on validation blocks.
"""

from __future__ import annotations

import argparse
import math
import time

import torch

import chanest
from chanest.estimators.slot_lmmse import SlotLMMSE
from chanest.fit import Fit
from chanest.link import LinkSetup
from chanest.link.receivers import receiver
from chanest.link.slots import link_of
from chanest.scenario import Scenario

RECEIVERS = ("sionna-ls", "sionna-linear", "sionna-lmmse", "slot-lmmse", "perfect")
SPREADS, SPEEDS = (100e-9, 300e-9), (3.0, 30.0)
VALIDATION = 32


def scenario(spread: float, speed: float, training: int) -> Scenario:
    content = chanest.load_scenario("slot_4x4").model_dump(mode="json")
    content["channel"].update(delay_spread=spread, speed=[speed, speed])
    content["data"]["train"] = training
    return Scenario.model_validate({**content, "name": f"slot_{spread * 1e9:.0f}ns_{speed:.0f}mps"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--snr", default="0,4,8", help="in dB, with commas between")
    parser.add_argument("--training", type=int, default=4000, help="slots")
    options = parser.parse_args()
    snrs = [float(snr) for snr in options.snr.split(",")]
    print(
        f"{'delay spread':>12} {'speed':>6} {'SNR':>4}  {'receiver':<14} {'NMSE':>6} {'BER':>8} {'BLER':>6} {'ms':>7}"
    )
    for spread, speed in ((spread, speed) for spread in SPREADS for speed in SPEEDS):
        setup = LinkSetup(scenario=scenario(spread, speed, options.training), modulation="qpsk")
        link = link_of(setup)
        ours = SlotLMMSE.build(link.problem)
        ours.fit(link.problem, Fit())
        ours.eval()
        for snr in snrs:
            validation = [link.draw(VALIDATION, seed=1, split="validation", start=0, snr_db=snr)]
            blocks = link.draw(options.blocks, seed=1, split="test", start=0, snr_db=snr)
            for name in RECEIVERS:
                told, _ = receiver(name, link, validation, ours if name == ours.name else None)
                begin = time.perf_counter()
                with torch.no_grad():
                    h_hat, err_var = told(blocks)
                took = 1e3 * (time.perf_counter() - begin) / len(blocks)
                wrong = (link.decode(blocks, h_hat, err_var) != blocks.bits).float()
                error = float((h_hat - blocks.truth).abs().square().sum() / blocks.truth.abs().square().sum())
                level = f"{10 * math.log10(error):.1f}" if error else "–"
                rates = f"{float(wrong.mean()):8.5f} {float(wrong.any(1).float().mean()):6.3f} {took:7.1f}"
                print(f"{spread * 1e9:9.0f} ns {speed:6.0f} {snr:4.0f}  {name:<14} {level:>6} {rates}", flush=True)


if __name__ == "__main__":
    main()
