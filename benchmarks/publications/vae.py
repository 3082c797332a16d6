"""Variational autoencoders for parameterised MMSE estimation (Baur et al. 2024): y = h + n, 64 and 128 antennas to one."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import torch
from torch import Tensor

from chanest.problem import ChannelBatch
from chanest.studies.published import DECIBELS, comparison
from publications.foreign import foreign_modules
from publications.gmm import fitted_mixture
from publications.measuring import Method, measured
from publications.publication import Publication
from publications.scm import bounds, drawn, other_turn, ours, problem_of
from vlista_core.study import Cell, Context, Row

_SNRS_DB = (0, 10, 20)
_SETTINGS = {
    "64 antennas, three clusters": ("scm_64x1", "64rx-3p"),
    "128 antennas, one cluster": ("scm_128x1_one", "128rx-1p"),
    "128 antennas, three clusters": ("scm_128x1", "128rx-3p"),
}
"""Setting -> our scenario, and how their files call it."""
_KINDS = ("genie", "noisy", "real")
_WEIGHTS = {
    "genie": "vae_circ-ThreeGPP-genie",
    "noisy": "vae_circ-ThreeGPP-noisy",
    "real": "vae_circ_noisy-ThreeGPP-real",
}
_CONFIGS = {"genie": "vae_circ_genie", "noisy": "vae_circ_noisy", "real": "vae_circ_noisy_real"}
_NAMES = {"genie": "VAE-genie (sees h)", "noisy": "VAE-noisy", "real": "VAE-real (learned from pilots)"}


def _files(kind: str, place: str) -> tuple[str, str]:
    return f"models/config-{_CONFIGS[kind]}-3gpp-{place}.json", f"models/best-{_WEIGHTS[kind]}-3gpp-{place}.pt"


class VariationalAutoencoder(Publication):
    """Their networks give mean and circulant covariance; their LMMSE step is taken as they wrote it, sample by sample."""

    name: ClassVar[str] = "vae"
    repository: ClassVar[str] = "tum-msv/vae-estimator"
    commit: ClassVar[str] = "f4cbf9193a8b5138c3fcef24cfde5861c712374d"
    files: ClassVar[tuple[str, ...]] = tuple(
        file for _, place in _SETTINGS.values() for kind in _KINDS for file in _files(kind, place)
    )

    def comparisons(self, samples: int | None) -> tuple[str, ...]:
        return tuple(
            comparison(self.name, setting, f"{snr} dB", samples or 1000) for setting in _SETTINGS for snr in _SNRS_DB
        )

    def compare(self, cell: Cell, context: Context) -> Row:
        snr_db = float(str(cell["at"]).removesuffix(" dB"))
        scenario, place = _SETTINGS[str(cell["setting"])]
        problem = problem_of(scenario)
        batches = drawn(problem, int(str(cell["samples"])), snr_db)
        mixture = fitted_mixture(problem)
        with foreign_modules(self.clone, ("models", "utils"), ("matplotlib.pyplot",)) as (models, utils):
            theirs = [self._method(kind, place, batches, models, utils) for kind in _KINDS]
            if mixture is not None:
                theirs.append(Method("GMM by cplx-gmm", lambda i: mixture.estimate(batches[i])))
            mine, absent = ours(problem, batches)
            found = measured([*theirs, *mine], [batch.signal for batch in batches])
        return {
            "measure": DECIBELS,
            "theirs": list(found[: len(theirs)]),
            "ours": list(found[len(theirs) :]),
            "bounds": bounds(problem, batches),
            "without_weights": list(absent),
        }

    def _method(self, kind: str, place: str, batches: list[ChannelBatch], models: Any, utils: Any) -> Method:
        """One of their estimators with its weights."""
        config, weights = (self.clone / file for file in _files(kind, place))
        settings = json.loads(config.read_text())
        widths = [int(settings["ch"] * settings["m"] ** depth) for depth in range(settings["n_hid"])]
        cls = models.VAECircCovReal if kind == "real" else models.VAECircCov
        model = cls(
            in_channels=2, stride=settings["st"], kernel_szs=[settings["k"]] * len(widths), hidden_dims=widths,
            latent_dim=settings["latent_dim"], input_size=int(place.split("rx")[0]), input_dim=1, act="relu",
            lambda_z=0.1, cond_as_input=int(kind == "noisy"), use_iaf=0, n_blocks=0, hidden_iaf=0, device="cpu",
        ).eval()  # fmt: skip
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))  # noqa: TID251

        def estimate(number: int) -> Tensor:
            batch = batches[number]
            return _estimate(kind, model, utils.compute_lmmse, batch)

        return Method(_NAMES[kind], estimate)


def _estimate(kind: str, model: Any, solve: Any, batch: ChannelBatch) -> Tensor:
    """Their estimate: [batch, n]. Their networks see Fourier transforms."""
    deviation, turn = batch.noise_var.sqrt(), other_turn(batch.y.shape[1])
    y = turn * batch.y
    seen = torch.fft.fft(turn * batch.signal if kind == "genie" else y, norm="ortho")
    given = torch.stack([seen.real, seen.imag], 1)
    if kind == "genie":
        *_, mean, covariance = model(given, train=False)
    else:
        *_, mean, covariance = model(None, cond=given, sigma=deviation.to(torch.complex64), train=False)
    if kind == "real":
        covariance = covariance[0]
    found: Tensor = turn * solve(covariance, mean, y, deviation)
    return found
