"""The harness for publications, on stand-ins of a few lines for the code of others that these tests write themselves."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from publications import PUBLICATIONS, scm, sparse_models
from publications.diffusion import Diffusion
from publications.foreign import foreign_modules
from publications.lista_cpss import SupportSelection
from publications.measuring import Method, measured
from publications.na_alista import NeurallyAugmented
from publications.publication import Harness, Publication, check_clone
from publications.sparse_laws import BLOCK, TONES, SparseTaps, SparseVectors
from publications.sparse_models import Recipe, support_known
from publications.vae import VariationalAutoencoder

from chanest.studies import STUDIES
from chanest.studies.published import DECIBELS, cell_of, comparison
from vlista_core.metrics import nmse_db
from vlista_core.study import Cell, Context, Row, read_study, run_study

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "published.py"
RULE = "def halved(y):\n    return y / 2\n"


class Halving(Publication):
    """A publication of these tests: its estimate of h from y = h + n is y/2."""

    name: ClassVar[str] = "halving"
    repository: ClassVar[str] = "nobody/halving"
    commit: ClassVar[str] = ""
    files: ClassVar[tuple[str, ...]] = ("weights.txt",)

    def comparisons(self, samples: int | None) -> tuple[str, ...]:
        return tuple(comparison(self.name, "pairs", at, samples or 8) for at in ("0 dB", "10 dB"))

    def compare(self, cell: Cell, context: Context) -> Row:
        signal = torch.ones(int(str(cell["samples"])), 2)
        with foreign_modules(self.clone, ("rule",)) as (rule,):
            theirs = measured([Method("half", lambda _: rule.halved(signal), printed=-6.0)], [signal])
        ours = measured([Method("nine tenths", lambda _: 0.9 * signal)], [signal])
        return {"measure": DECIBELS, "theirs": list(theirs), "ours": list(ours), "bounds": []}


def _clone(folder: Path, files: dict[str, str]) -> str:
    """A repository with these files in one commit; returns the commit."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return _commit(folder)


def _commit(folder: Path) -> str:
    author = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")
    for command in (("init", "-q"), ("add", "-A"), (*author, "commit", "-q", "-m", "A stand-in")):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    asked = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "clone"
    monkeypatch.setattr(Halving, "commit", _clone(folder, {"rule.py": RULE, "weights.txt": "1"}))
    return folder


def test_a_study_of_a_publication_has_theirs_and_ours_in_one_row(clone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run_study(Harness.of(Halving(clone), None), folder)
    assert not result.faults
    read = read_study(folder, STUDIES)
    assert [record.cell["at"] for record in read.records] == ["0 dB", "10 dB"]
    row = read.records[0].row
    assert row["clone"] == Halving.commit
    assert row["theirs"] == [
        {
            "name": "half",
            "printed": -6.0,
            "found": pytest.approx(-6.021),
            "standard_error": 0.0,
            "ms": pytest.approx(0, abs=50),
        }
    ]
    (main, whole) = read.study.tables(read.frame)
    assert main.lines[0][1:4] == ("−6.00", "−6.02", "−20.00 (nine tenths)")
    assert main.marked == {(0, 3), (1, 3)}
    assert [line[2] for line in whole.lines] == ["half", "nine tenths"] * 2


def test_the_standard_error_is_what_other_draws_would_differ_by() -> None:
    """Of 2,000 studies of 50 samples each, whose errors vary by themselves."""
    generator = torch.Generator().manual_seed(3)
    signal = torch.randn(2000, 50, 4, generator=generator)
    estimate = signal + torch.randn(2000, 50, 4, generator=generator) * torch.rand(2000, 50, 1, generator=generator)
    entries: list[Any] = []
    for truth, guess in zip(signal, estimate, strict=True):
        entries += measured([Method("noisy", dict(enumerate([guess])).__getitem__)], [truth])
    found = torch.tensor([[each["found"], each["standard_error"]] for each in entries])
    assert float(found[:, 1].mean()) == pytest.approx(float(found[:, 0].std()), rel=0.06)


def test_a_later_run_adds_comparisons_and_leaves_those_that_are_done(clone: Path, tmp_path: Path) -> None:
    run_study(Harness.of(Halving(clone), 8), tmp_path / "run")
    result = run_study(Harness.of(Halving(clone), 4), tmp_path / "run")
    assert [record.cell["samples"] for record in result.records] == [8, 8, 4, 4]


def test_a_missing_clone_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder .*nowhere; clone nobody/halving from GitHub and give its path"):
        check_clone(Halving, tmp_path / "nowhere")


def test_a_folder_that_is_no_clone_is_refused(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (clone / "inside").mkdir()
    for folder in (tmp_path / "plain", clone / "inside"):
        with pytest.raises(ValueError, match="is no clone; clone nobody/halving"):
            check_clone(Halving, folder)


def test_another_commit_is_refused_with_the_command_that_mends_it(clone: Path) -> None:
    (clone / "rule.py").write_text(RULE + "\n", encoding="utf-8")
    other = _commit(clone)
    with pytest.raises(ValueError, match=rf"at commit {other[:12]}.* git -C .* checkout {Halving.commit[:12]}$"):
        check_clone(Halving, clone)


def test_missing_weights_are_named_with_the_command_that_brings_them_back(clone: Path) -> None:
    (clone / "weights.txt").unlink()
    with pytest.raises(ValueError, match=rf"lacks weights.txt .*checkout {Halving.commit[:12]} -- 'weights.txt'$"):
        check_clone(Halving, clone)


@pytest.mark.parametrize("name", PUBLICATIONS)
def test_the_command_refuses_a_missing_clone_in_one_sentence(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), name, "--clone", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --clone: there is no folder")
    assert len(done.stderr.splitlines()) == 1


def test_rows_without_the_harness_name_the_command(tmp_path: Path) -> None:
    study = read_study(Path(__file__).parents[2] / "docs" / "results" / "published", STUDIES).study
    with pytest.raises(ValueError, match=r"python benchmarks/published.py vae --clone PATH"):
        study.run(cell_of("vae | 64 | 0 dB | 3"), Context(tmp_path))
    with pytest.raises(ValueError, match="comparisons must read"):
        cell_of("vae")


def test_two_clones_may_both_have_a_module_of_one_name(tmp_path: Path) -> None:
    for name, value in (("first", 1), ("second", 2)):
        _clone(tmp_path / name, {"utils.py": f"import absent_package\nVALUE = {value}\n"})
    for name, value in (("first", 1), ("second", 2)):
        with foreign_modules(tmp_path / name, ("utils",), ("absent_package",)) as (utils,):
            assert value == utils.VALUE
        assert "utils" not in sys.modules
        assert "absent_package" not in sys.modules
    assert not any("first" in place or "second" in place for place in sys.path)


NETWORK = """
class CNN:
    def __init__(self, device):
        self.device = device

class DiffusionModel:
    def __init__(self, network, gain):
        self.gain = gain
    def load_state_dict(self, weights):
        assert set(weights) == {"w"}
    def eval(self):
        return self
    def generate_estimate(self, y, snr):
        return y * snr / (1 + snr)
"""


def test_diffusion_is_run_on_our_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that shrinks all entries alike is the LMMSE estimate of white channels: its NMSE is 1/(1 + SNR)."""
    place = "results/best_models_dm_paper/3gpp_path=3"
    settings = {"unet_dict": {"device": "cuda:0"}, "diff_model_dict": {"gain": 1.0}}
    results = {"nmse": {"SNRs": [-10.0, 0.0, 10.0, 20.0], "NMSEs_total_power": [0.9, 0.5, 0.1, 0.01]}}
    texts = {"sim_params.json": json.dumps(settings), "test_results.json": json.dumps(results)}
    folder = tmp_path / "clone"
    (folder / place / "train_models").mkdir(parents=True)
    torch.save({"model": {"w": torch.zeros(1)}}, folder / place / "train_models" / "model-425.pt")
    files = {f"{place}/{name}": text for name, text in texts.items()}
    monkeypatch.setattr(Diffusion, "commit", _clone(folder, {"DMCE/__init__.py": NETWORK, **files}))
    monkeypatch.setattr(scm, "NAMES", ("product-lmmse",))
    publication = Diffusion(folder)
    row = publication.compare(cell_of(publication.comparisons(16)[1]), Context(tmp_path))
    ((theirs,), (ours,), (bound,)) = (_entries(row, kind) for kind in ("theirs", "ours", "bounds"))
    assert theirs["printed"] == -3.01
    assert theirs["found"] == pytest.approx(-3.01, abs=0.15)
    assert bound["found"] < ours["found"] < theirs["found"]


def test_broadside_of_ours_is_end_fire_of_theirs() -> None:
    """Without it the published networks lose up to half a dB on our channels."""
    spectrum = torch.fft.fft(scm.other_turn(16) * torch.ones(16)).abs()
    assert int(spectrum.argmax()) == 8
    assert torch.equal(scm.other_turn(16).square(), torch.ones(16))


MODELS = """
import torch

class VAECircCov:
    def __init__(self, input_size, cond_as_input=0, **settings):
        self.size, self.conditioned = input_size, cond_as_input
    def eval(self):
        return self
    def load_state_dict(self, weights):
        assert set(weights) == {"w"}
    def __call__(self, data, cond=None, sigma=None, train=False):
        seen = cond if self.conditioned else data
        batch = len(seen)
        mean = torch.zeros(batch, self.size, dtype=torch.cfloat)
        return mean, torch.eye(self.size, dtype=torch.cfloat).expand(batch, -1, -1)

class VAECircCovReal(VAECircCov):
    def __call__(self, data, cond=None, sigma=None, train=False):
        self.conditioned = 1
        mean, covariance = super().__call__(data, cond=cond, sigma=sigma)
        return mean, [covariance, None]
"""
UTILS = """
def compute_lmmse(covariance, mean, y, sigma):
    return y / (1 + sigma[:, None] ** 2)
"""


def test_autoencoders_are_run_on_our_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "clone"
    (folder / "models").mkdir(parents=True)
    for name in VariationalAutoencoder.files:
        if name.endswith(".pt"):
            torch.save({"w": torch.zeros(1)}, folder / name)
        else:
            settings = {"ch": 4, "m": 1.5, "n_hid": 2, "st": 2, "k": 3, "latent_dim": 2}
            (folder / name).write_text(json.dumps(settings), encoding="utf-8")
    monkeypatch.setattr(VariationalAutoencoder, "commit", _clone(folder, {"models.py": MODELS, "utils.py": UTILS}))
    monkeypatch.setattr(scm, "NAMES", ("ls", "lmmse"))
    publication = VariationalAutoencoder(folder)
    names = publication.comparisons(40)
    row = publication.compare(cell_of(next(name for name in names if "64 antennas" in name)), Context(tmp_path))
    theirs = {each["name"]: each["found"] for each in _entries(row, "theirs")}
    assert {name.split()[0] for name in theirs} >= {"VAE-genie", "VAE-noisy", "VAE-real"}
    assert all(found == pytest.approx(-3.01, abs=0.5) for name, found in theirs.items() if name.startswith("VAE"))


SPARSE = """
import torch

class Plain(torch.nn.Module):
    def __init__(self, *given):
        super().__init__()
        self.given = given
        self.regressor = Regressor()
    def load(self, name):
        open(name).close()
    def forward(self, y, info):
        self.regressor.look(y)
        n = self.given[1]
        shape = (len(y), n, 2) if y.ndim == 3 else (len(y), n)
        return torch.zeros(shape) * self.regressor.bl1_mean, None, None

class Regressor(torch.nn.Module):
    bl1_mean = 0
    def look(self, y):
        if isinstance(self.bl1_mean, int):
            self.bl1_mean = self.bl1_std = self.cl1_mean = self.cl1_std = 1.0

ALISTA = AGLISTA = NA_ALISTA_UR_128 = Plain
"""


def test_sparse_networks_are_run_on_their_laws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "clone"
    for name in NeurallyAugmented.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".npy"):
            np.save(folder / name, np.eye(2))
        elif name.endswith("train_log"):
            with (folder / name).open("w", encoding="utf-8", newline="") as log:
                csv.writer(log).writerows([("epoch", "test_dbs"), (0, -1.0), (1, -2.5), (2, -2.0)])
        else:
            (folder / name).touch()
    code = {f"utils/{name}.py": SPARSE for name in ("all_models", "all_models_comm")}
    monkeypatch.setattr(NeurallyAugmented, "commit", _clone(folder, {"utils/__init__.py": "", **code}))
    monkeypatch.setattr(sparse_models, "RECIPES", {"alista": {"50": Recipe(1, 8, 1e-3)}})
    publication = NeurallyAugmented(folder)
    row = publication.compare(cell_of(publication.comparisons(BLOCK)[0]), Context(tmp_path))
    for each in _entries(row, "theirs"):
        assert (each["printed"], each["found"]) == (-2.5, pytest.approx(0.0, abs=1e-6))
    (ours,), (bound,) = _entries(row, "ours"), _entries(row, "bounds")
    assert ours["name"] == "alista"
    assert bound["found"] < ours["found"] < -8.0


def test_our_networks_are_run_on_their_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import numpy as np\ndef random_A(m, n):\n    return np.random.normal(size=(m, n)) / np.sqrt(m)\n"
    vectors = np.random.default_rng(0).normal(size=(500, 6)) * (np.random.default_rng(1).random((500, 6)) < 0.1)
    (tmp_path / "clone" / "data").mkdir(parents=True)
    np.save(tmp_path / "clone" / SupportSelection.files[0], vectors.astype(np.float32))
    made = _clone(tmp_path / "clone", {"utils/__init__.py": "", "utils/prob.py": code})
    monkeypatch.setattr(SupportSelection, "commit", made)
    monkeypatch.setattr(sparse_models, "RECIPES", {"alista": {"500": Recipe(1, 8, 1e-3)}})
    np.random.seed(7)  # noqa: NPY002
    wanted = np.random.random()  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    publication = SupportSelection(tmp_path / "clone")
    row = publication.compare(cell_of(publication.comparisons(6)[0]), Context(tmp_path))
    assert np.random.random() == wanted  # noqa: NPY002
    found = {each["name"]: each["found"] for each in _entries(row, "ours")}
    (bound,) = _entries(row, "bounds")
    assert found["VAMP"] == pytest.approx(-45, abs=3)
    assert bound["found"] < min(found.values())


def test_noise_of_sparse_vectors_has_the_deviation_of_each_measurement() -> None:
    problem = SparseVectors(length=60, rows=40, active=6.0, snr_db=20.0)
    batch = problem.sample(400, seed=1)
    clean = batch.phi.apply(batch.signal)
    noise = batch.y - clean
    assert torch.allclose(batch.noise_var, 0.01 * clean.var(1))
    assert float((noise.square().mean(1) / batch.noise_var).mean()) == pytest.approx(1.0, abs=0.03)
    assert torch.equal(batch.y[100:104], problem.sample(4, seed=1, start=100).y)
    assert float((batch.signal != 0).float().mean()) == pytest.approx(0.1, abs=0.01)


def test_noise_of_taps_is_that_of_another_sample_on_each_tone() -> None:
    law = SparseTaps(tones=75)
    batch, noisy = law.on_all_tones(0, seed=1)
    tones = law.published_tones()
    assert law.measurements == len(tones) == len(tones.unique())
    assert torch.equal(batch.y, noisy[:, tones])
    spectrum = torch.fft.fft(batch.signal, TONES, norm="ortho")
    mask = torch.zeros(TONES)
    mask[tones] = 1.0
    clean = spectrum * mask
    assert torch.allclose(batch.phi.apply(batch.signal), clean[:, tones], atol=1e-5)
    deviation = torch.view_as_real(clean).std(1).flatten() * 10**-0.5
    found = torch.view_as_real(noisy - clean).square().mean((0, 2)).sqrt()
    assert torch.allclose(found, deviation, rtol=0.2)
    other = law.sample(40, seed=1, start=BLOCK - 20)
    assert torch.equal(other.y[:20], batch.y[-20:])
    assert float(batch.signal.abs().square().sum(1).mean()) == pytest.approx(1.0, abs=0.1)


def test_taps_on_tones_of_their_own_follow_the_same_law() -> None:
    law = SparseTaps(tones=50, varying=True)
    batch = law.sample(BLOCK, seed=1)
    noise = batch.y - batch.phi.apply(batch.signal)
    assert float(noise.abs().square().mean() / batch.noise_var.mean()) == pytest.approx(1.0, abs=0.05)
    assert not torch.equal(batch.phi.materialize()[0], batch.phi.materialize()[1])


def test_who_knows_the_support_is_better_than_any_network() -> None:
    law = SparseTaps(tones=100)
    batch = law.sample(64, seed=1)
    assert nmse_db(support_known(batch, law.powers()), batch.signal) < -25.0


def _entries(row: Row, kind: str) -> list[Any]:
    found = row[kind]
    assert isinstance(found, list)
    return found
