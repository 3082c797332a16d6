"""Exported estimators run where this package is not, and give the numbers they give here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import chanest
from chanest.cli import app
from chanest.estimators import estimator_class, estimator_names
from chanest.export import FORMS, as_received, exported, forms_of, program_of
from chanest.fit import Fit

STRANGER = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("chanest", "vlista_core"):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Absent())
import numpy as np
import torch

program, inputs, answers = sys.argv[1:]
core = torch.export.load(program).module()
given = [torch.from_numpy(each) for each in np.load(inputs).values()]
with torch.no_grad():
    np.savez(answers, core(*given), core(*(each[:1] for each in given)))
"""
WITH_ONNX = [name for name in estimator_names() if "onnx" in forms_of(name)]


@pytest.fixture
def tiny(few_antennas: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> chanest.ChannelProblem:
    """A few antennas, so that recording takes seconds."""
    monkeypatch.setenv("CHANEST_WEIGHTS", str(tmp_path / "weights"))
    (tmp_path / "tiny.toml").write_text(few_antennas + "[data]\ntrain = 200\n")
    return chanest.ChannelProblem(chanest.load_scenario(str(tmp_path / "tiny.toml")))


def _apart(found: np.ndarray, wanted: torch.Tensor) -> float:
    """The distance of two estimates over the length of one, of the sample where it is largest."""
    gap = np.linalg.norm(found - wanted.numpy(), axis=1) / np.linalg.norm(wanted.numpy(), axis=1)
    return float(gap.max())


@pytest.mark.parametrize("scenario", ["cdl_c_upa64x4", "hybrid_64x16"])
def test_the_flagship_runs_where_this_package_is_not(scenario: str, tmp_path: Path) -> None:
    """In batches of other sizes than the recorded one, from y as received: `hybrid_64x16` has combiners.

    At 10 dB: at 25 dB single precision alone puts 2e-5 between estimates of a sample alone and in a batch.
    """
    program, inputs, answers = (tmp_path / name for name in ("flagship.pt2", "inputs.npz", "answers.npz"))
    written = CliRunner().invoke(app, ["export", "gated-lmmse", scenario, "-o", str(program)], catch_exceptions=False)
    assert written.exit_code == 0, written.stderr
    assert "-> h [batch, " in written.stdout
    problem = chanest.ChannelProblem(chanest.load_scenario(scenario))
    batch = problem.sample(8, seed=11, snr_db=10.0)
    np.savez(inputs, *(each.numpy() for each in as_received(batch.y, batch.phi, batch.noise_var)))
    script = [sys.executable, "-c", STRANGER, str(program), str(inputs), str(answers)]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = chanest.get_estimator("gated-lmmse", problem, guarded=False).estimate(batch.y, batch.phi, batch.noise_var)
    with np.load(answers) as found:
        many, one = found.values()
    assert _apart(many, wanted.signal) < 1e-5
    assert _apart(one, wanted.signal[:1]) < 1e-5


@pytest.mark.parametrize("name", ["ls", "lmmse"])
def test_a_recorded_estimator_gives_its_numbers_and_stays_as_it_was(name: str, tiny: chanest.ChannelProblem) -> None:
    """Of others the same is said by `benchmarks/exported.py`, since recording all of them takes minutes."""
    estimator = estimator_class(name).build(tiny)
    if name == "lmmse":
        estimator.fit(tiny, Fit(steps=1))
    batch = tiny.sample(5, seed=3)
    before = estimator.estimate(batch.y, batch.phi, batch.noise_var).signal
    core = program_of(estimator, tiny).module()
    with torch.no_grad():
        found = core(*as_received(batch.y, batch.phi, batch.noise_var))
    assert _apart(found.numpy(), before) < 1e-5
    assert torch.equal(estimator.estimate(batch.y, batch.phi, batch.noise_var).signal, before)


@pytest.mark.parametrize("name", WITH_ONNX[:1])
def test_onnx_runs_and_gives_the_same_numbers(name: str, tiny: chanest.ChannelProblem, tmp_path: Path) -> None:
    """With the weights that a network starts from: `benchmarks/exported.py` has all of them, with trained ones."""
    pytest.importorskip("onnxscript", reason="ONNX is not installed: pip install 'vlista[export]'")
    runtime = pytest.importorskip("onnxruntime", reason="ONNX is not installed: pip install 'vlista[export]'")
    estimator = estimator_class(name).build(tiny)
    path = exported(estimator, tiny, tmp_path / "network.onnx")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    assert about["estimator"] == name
    assert "y [batch, 12, 2]" in about["inputs"]
    for count in (5, 1):
        batch = tiny.sample(count, seed=4)
        given = as_received(batch.y, batch.phi, batch.noise_var)
        real = [torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in given]
        names = [each.name for each in session.get_inputs()]
        (h,) = session.run(None, dict(zip(names, (each.numpy() for each in real), strict=True)))
        wanted = estimator.estimate(batch.y, batch.phi, batch.noise_var).signal
        assert float(wanted.abs().max()) > 1e-3, "an estimate of zeros shows nothing"
        assert _apart(h[..., 0] + 1j * h[..., 1], wanted) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["omp", "cdl_c_upa64x4", "-o", "x.pt2"], "omp has no .pt2 form; these have one: ls, lmmse, "),
        (["gated-lmmse", "cdl_c_upa64x4", "-o", "x.onnx"], "gated-lmmse has no .onnx form; these have one: "),
        (["gated-lmmse", "cdl_c_upa64x4", "-o", "x.pth"], "output must end in .pt2 or .onnx, got x.pth"),
        (["gated-lmmse", "cdl_c_upa64x4"], "export needs a scenario and a file: chanest export gated-lmmse SCENARIO -o "),
        (["lmmse", "wideband_64x4", "-o", "x.pt2"], "exported for beams on one subcarrier; wideband_64x4 has 64"),
        (["lmmse", "comb_64x4", "-o", "x.pt2"], "exported for beams on one subcarrier; comb_64x4 has pilots on a grid"),
        (["luck", "cdl_c_upa64x4", "-o", "x.pt2"], "unknown estimator 'luck'"),
        (["lista", "cdl_c_upa64x4", "-o", "x.pt2"], "lista has no weights for cdl_c_upa64x4; train them with: chanest train"),
    ],
    ids=["no form", "no onnx", "ending", "no file", "subcarriers", "grid", "unknown", "no weights"],
)  # fmt: skip
def test_what_cannot_be_exported_is_refused_in_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, ["export", *arguments], catch_exceptions=False)
    assert refused.exit_code == 2
    assert words in refused.stderr
    assert refused.stderr.startswith("error: ")
    assert refused.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_which_estimators_have_which_form() -> None:
    listed = CliRunner().invoke(app, ["export"], catch_exceptions=False)
    assert listed.exit_code == 0
    for name in estimator_names():
        assert name in listed.stdout
    rows = {line.split()[0]: line.split()[1:3] for line in listed.stdout.splitlines() if line.split()[1:2] == ["yes"]}
    assert rows == {
        name: ["yes" if form in forms_of(name) else "–" for form in FORMS]
        for name in estimator_names()
        if forms_of(name)
    }
