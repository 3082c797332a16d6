"""Diffusion-based generative prior for MIMO channel estimation (Fesl et al. 2024): y = h + n, 64 x 16, three clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from chanest.problem import ChannelBatch
from chanest.studies.published import DECIBELS, comparison
from publications.foreign import foreign_modules
from publications.measuring import Method, measured
from publications.publication import Publication
from publications.scm import bounds, drawn, other_turn, ours, problem_of
from vlista_core.study import Cell, Context, Row

_FOLDER = "results/best_models_dm_paper/3gpp_path=3"
_SNRS_DB = (-10, 0, 10, 20)
_SCENARIO = "scm_64x16"
_RX, _TX = 64, 16
_ABSENT = (
    "torchvision",
    "torchvision.transforms",
    "pytorch_fid",
    "pytorch_fid.inception",
    "matplotlib.pyplot",
    "tqdm.auto",
)


class Diffusion(Publication):
    """Their network and weights, run as their test does: without resampling, from the step that has the SNR of y."""

    name: ClassVar[str] = "diffusion"
    repository: ClassVar[str] = "benediktfesl/Diffusion_channel_est"
    commit: ClassVar[str] = "7eec6bd77a6bc7dbd2889213e2a903e5995b6a18"
    files: ClassVar[tuple[str, ...]] = tuple(
        f"{_FOLDER}/{each}" for each in ("sim_params.json", "test_results.json", "train_models/model-425.pt")
    )

    def comparisons(self, samples: int | None) -> tuple[str, ...]:
        return tuple(comparison(self.name, "64x16, three clusters", f"{snr} dB", samples or 1000) for snr in _SNRS_DB)

    def compare(self, cell: Cell, context: Context) -> Row:
        snr_db = float(str(cell["at"]).removesuffix(" dB"))
        problem = problem_of(_SCENARIO)
        batches = drawn(problem, int(str(cell["samples"])), snr_db)
        signals = [batch.signal for batch in batches]
        with self._model() as model:
            theirs = Method("diffusion", lambda i: _estimate(model, batches[i], snr_db), self._printed(snr_db))
            mine, absent = ours(problem, batches)
            found = measured([theirs, *mine], signals)
        return {
            "measure": DECIBELS,
            "theirs": [found[0]],
            "ours": list(found[1:]),
            "bounds": bounds(problem, batches),
            "without_weights": list(absent),
        }

    def _printed(self, snr_db: float) -> float:
        """What their test results hold, in dB."""
        found = json.loads((self.clone / _FOLDER / "test_results.json").read_text())["nmse"]
        power = found["NMSEs_total_power"][found["SNRs"].index(snr_db)]
        return round(10 * float(torch.tensor(power).log10()), 2)

    @contextmanager
    def _model(self) -> Iterator[Any]:
        """Their network with their weights."""
        with foreign_modules(self.clone, ("DMCE",), _ABSENT) as (package,):
            settings = json.loads((self.clone / _FOLDER / "sim_params.json").read_text())
            network = package.CNN(**{**settings["unet_dict"], "device": "cpu"})
            model = package.DiffusionModel(network, **settings["diff_model_dict"])
            weights = self.clone / _FOLDER / "train_models" / "model-425.pt"
            model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True)["model"])  # noqa: TID251
            yield model.eval()


def _estimate(model: Any, batch: ChannelBatch, snr_db: float) -> Tensor:
    """Their estimate: [batch, n]. Their network sees the two-dimensional Fourier transform of the channel matrix."""
    turn = other_turn(_RX)[:, None] * other_turn(_TX)
    grid = turn * batch.y.reshape(len(batch), _TX, _RX).mT
    angular = torch.fft.fft2(grid, norm="ortho")
    given = torch.stack([angular.real, angular.imag], 1)
    found = model.generate_estimate(given, torch.tensor(10 ** (snr_db / 10)))
    matrix = turn * torch.fft.ifft2(torch.complex(found[:, 0], found[:, 1]), norm="ortho")
    flat: Tensor = matrix.mT.flatten(1)
    return flat
