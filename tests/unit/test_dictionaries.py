"""Fixed dictionaries: orthonormality at every size, agreement with their libraries, sparsity where they promise it."""

import numpy as np
import pytest
import pywt
import torch
from scipy.fft import idctn

from vlista_core.dictionaries import LearnedDictionary, dct, scaled_principal, sparse_pca, wavelet
from vlista_core.linops import DenseMap, IdentityMap


@pytest.mark.parametrize("name", ["haar", "db4", "sym4", "db8"])
@pytest.mark.parametrize("size", [(28, 28), (32, 32), (27, 31), (7, 10), (1, 16)], ids=str)
def test_wavelet_map_is_orthonormal(name: str, size: tuple[int, int]) -> None:
    matrix = wavelet(*size, name=name, dtype=torch.float64).materialize()[0]
    identity = torch.eye(size[0] * size[1], dtype=torch.float64)
    assert (matrix.T @ matrix - identity).abs().max() < 1e-6
    assert (matrix @ matrix.T - identity).abs().max() < 1e-6


def test_wavelet_equals_pywavelets_where_sides_are_even() -> None:
    image = np.random.default_rng(0).standard_normal((32, 48))
    code = wavelet(32, 48, name="db2", levels=2, dtype=torch.float64).adjoint(torch.from_numpy(image).reshape(1, -1))
    theirs = pywt.wavedec2(image, "db2", mode="periodization", level=2)
    array, _ = pywt.coeffs_to_array(theirs)
    assert np.allclose(np.sort(np.abs(code.numpy().ravel())), np.sort(np.abs(array.ravel())), atol=1e-10)
    assert np.allclose(code.numpy().reshape(32, 48)[:8, :12], theirs[0], atol=1e-10)


def test_wavelets_compress_a_smooth_image() -> None:
    rows, columns = np.meshgrid(np.linspace(0, 1, 28), np.linspace(0, 1, 28), indexing="ij")
    image = torch.from_numpy(np.exp(-8 * ((rows - 0.4) ** 2 + (columns - 0.6) ** 2))).reshape(1, -1)
    code = wavelet(28, 28, dtype=torch.float64).adjoint(image)
    largest = code.abs().sort(descending=True).values[0, :80]
    assert float(largest.square().sum() / image.square().sum()) > 0.995


def test_dct_equals_scipy() -> None:
    code = np.random.default_rng(1).standard_normal((1, 5, 7))
    image = dct(5, 7, dtype=torch.float64).apply(torch.from_numpy(code).reshape(1, -1))
    assert np.allclose(image.numpy().reshape(5, 7), idctn(code[0], norm="ortho"))


def test_sparse_pca_spans_its_training_images_better_than_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = (torch.rand(4, 36, generator=generator) > 0.7).double()
    images = torch.rand(200, 4, generator=generator, dtype=torch.float64) @ parts
    psi = sparse_pca(images, 6).materialize()[0]
    assert psi.shape == (36, 6)
    assert torch.allclose(psi.norm(dim=0), torch.ones(6, dtype=torch.float64))
    fresh = torch.rand(50, 4, generator=generator, dtype=torch.float64) @ parts
    fitted = psi @ torch.linalg.lstsq(psi, fresh.T).solution
    assert float((fitted - fresh.T).norm() / fresh.norm()) < 0.1


def test_canonical_code_is_the_signal() -> None:
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(IdentityMap(5).apply(x), x)
    phi = DenseMap(torch.ones(3, 5))
    assert (phi @ IdentityMap(5)) is phi


def test_complex_learned_dictionary_stores_real_pairs_and_learns() -> None:
    psi = LearnedDictionary.random(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.complex64)
    assert [parameter.dtype for parameter in psi.parameters()] == [torch.float32]
    code = torch.randn(3, 8, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    torch.autograd.backward(psi.apply(code).abs().square().sum())
    assert psi.weight.grad is not None
    assert torch.isfinite(psi.weight.grad).all()
    assert psi.weight.grad.abs().max() > 0


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"bior2\.2"):
        wavelet(8, 8, name="bior2.2")
    with pytest.raises(ValueError, match="levels"):
        wavelet(8, 8, levels=0)
    with pytest.raises(ValueError, match="images"):
        sparse_pca(torch.zeros(5), 3)


def test_scaled_principal_directions_are_orthogonal_and_as_long_as_asked() -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.tensor([4.0, 2.0, 1.0, 0.5])
    signals = torch.randn(20_000, 4, generator=generator) * spread
    psi = scaled_principal(signals, exponent=0.25).matrix
    gram = psi.mT @ psi
    assert torch.allclose(gram - torch.diag(gram.diagonal()), torch.zeros(4, 4), atol=1e-5)
    assert torch.allclose(gram.diagonal(), spread / 4.0, rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_scaled_dictionary_starts_the_same_and_moves_atoms_by_their_share(dtype: torch.dtype) -> None:
    start = torch.randn(6, 3, dtype=dtype, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1e-3, 0.0])
    plain, scaled = LearnedDictionary(start), LearnedDictionary(start, scaled=True)
    torch.testing.assert_close(scaled.matrix, start)
    with torch.no_grad():
        for dictionary in (plain, scaled):
            dictionary.weight.add_(0.01)
    moved = (scaled.matrix - start).norm(dim=0) / start.norm(dim=0)
    assert float(moved[0].detach()) == pytest.approx(float(moved[1].detach()))
    assert float((plain.matrix - start).norm(dim=0)[1].detach()) > 10 * float(start.norm(dim=0)[1])
    again = LearnedDictionary.from_configuration(scaled.configuration())
    again.load_state_dict(scaled.state_dict())
    assert torch.equal(again.matrix, scaled.matrix)
