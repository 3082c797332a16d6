"""Images through random matrices: what depends on what, which images are in which split, and who shares a Φ."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.draws import Split
from vlista_core.linops import GroupedMap


def _data() -> ImageData:
    generator = torch.Generator().manual_seed(0)
    train = torch.randint(0, 255, (200, 12, 11), generator=generator, dtype=torch.uint8)
    test = torch.randint(0, 255, (30, 12, 11), generator=generator, dtype=torch.uint8)
    return ImageData("toy", train, torch.arange(200) % 10, test, torch.arange(30) % 10)


PROBLEM = ImageProblem(data=_data(), rows=7, sharing=4)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("snr_db", [None, 10.0])
def test_a_sample_is_the_same_in_any_batch(split: Split, snr_db: float | None) -> None:
    whole = PROBLEM.sample(16, seed=3, split=split, start=4, snr_db=snr_db)
    part = PROBLEM.sample(3, seed=3, split=split, start=9, snr_db=snr_db)
    assert torch.equal(whole.signal[5:8], part.signal)
    assert torch.equal(whole.phi.materialize()[5:8], part.phi.materialize())
    assert torch.allclose(whole.y[5:8], part.y, atol=1e-6)


def test_training_samples_share_a_matrix_in_groups_and_others_have_their_own() -> None:
    train = PROBLEM.sample(8, seed=0, split="train").phi
    assert isinstance(train, GroupedMap)
    matrices = train.materialize()
    assert torch.equal(matrices[0], matrices[3])
    assert not torch.equal(matrices[3], matrices[4])
    test = PROBLEM.sample(8, seed=0, split="test").phi.materialize()
    assert len({matrix.numpy().tobytes() for matrix in test}) == 8


def test_no_split_shares_a_matrix_or_an_image() -> None:
    seen: set[bytes] = set()
    for split in ("train", "validation", "test"):
        batch = PROBLEM.sample(12, seed=0, split=split)
        mine = {row.numpy().tobytes() for row in (*batch.phi.materialize(), *batch.signal)}
        assert not seen & mine
        seen |= mine


def test_test_images_come_in_order_and_as_they_are() -> None:
    data = _data()
    batch = PROBLEM.sample(4, seed=5, start=2)
    assert torch.allclose(PROBLEM.images(batch.signal), data.test[2:6].float() / 255)


def test_centred_signals_have_no_mean_and_give_the_same_images() -> None:
    centred = replace(PROBLEM, centred=True)
    assert float(centred.signals(range(2000), seed=0, split="train").mean()) == pytest.approx(0.0, abs=2e-3)
    raw, moved = PROBLEM.sample(4, seed=1), centred.sample(4, seed=1)
    assert torch.allclose(PROBLEM.images(raw.signal), centred.images(moved.signal), atol=1e-6)


def test_the_noise_is_what_the_snr_says() -> None:
    clean, noisy = PROBLEM.sample(400, seed=0), PROBLEM.sample(400, seed=0, snr_db=6.0)
    power = float((noisy.y - clean.y).square().mean())
    assert power == pytest.approx(float(noisy.noise_var[0]), rel=0.1)
    ratio = PROBLEM.sample(2000, seed=0, split="train").y.square().mean() / noisy.noise_var[0]
    assert float(ratio) == pytest.approx(10**0.6, rel=0.1)


def test_classes_choose_images_in_every_split() -> None:
    some = replace(PROBLEM, classes=(3, 8))
    data = _data()
    wanted = {
        image.numpy().tobytes() for image, label in zip(data.test, data.test_labels, strict=True) if label in (3, 8)
    }
    got = {(image * 255).round().byte().numpy().tobytes() for image in some.images(some.sample(6, seed=0).signal)}
    assert got == wanted
    with pytest.raises(ValueError, match="classes must be among"):
        replace(PROBLEM, classes=(11,))


def test_a_fixed_matrix_serves_all() -> None:
    fixed = replace(PROBLEM, fixed_phi_seed=1)
    train, test = (fixed.sample(3, seed=0, split=split).phi.materialize() for split in ("train", "test"))
    assert train.shape == (1, 7, 132)
    assert torch.equal(train, test)


def test_training_draws_every_image_equally_often() -> None:
    chosen = PROBLEM.signals(range(18000), seed=0, split="train")
    _, counts = chosen.unique(dim=0, return_counts=True)
    assert len(counts) == 180
    assert float((counts - 100.0).square().sum() / 100.0) == pytest.approx(179, abs=4.5 * (2 * 179) ** 0.5)
