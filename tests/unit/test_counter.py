"""Numbers from (key, counter): the published hash, the right statistics, the same numbers in any batch and on any thread."""

import numpy as np
import pytest
import torch

from vlista_core.counter import PIECE, counted_words, hashed, normals, sample_keys, uniforms


def _keys(count: int, *, seed: int = 0, start: int = 0) -> torch.Tensor:
    return sample_keys(seed, "train", range(start, start + count), stream="a test")


def test_the_hash_is_splitmix64() -> None:
    # The first outputs for seed 1234567 that implementations of SplitMix64 are checked with.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    words = counted_words(torch.tensor([[1234567, 0]]), 5, start=1)
    assert words[0].numpy().view(np.uint64).tolist() == known


def test_words_with_a_second_key_are_those_of_numpy_on_unsigned_words() -> None:
    words = np.arange(1, 2000, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)
    key = np.uint64(0xFEDCBA9876543210)
    mixed = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9) + key
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    ours = hashed(torch.from_numpy(words.view(np.int64).copy()), torch.tensor(int(key.view(np.int64))))
    assert ours.numpy().view(np.uint64).tolist() == mixed.tolist()


def test_golden_values() -> None:
    keys = sample_keys(7, "validation", range(3, 5), stream="golden")
    assert keys.tolist() == [
        [-8370153536237336429, -1820736946361105679],
        [-210758567158456389, -5632885416651665865],
    ]
    single = torch.tensor([[-0.1038762, 1.6883609, -0.9730703], [0.5408957, 0.1347110, 0.6659622]])
    double = [
        [-1.6371939894701313, 0.15398477367644398, 0.418486545990347],
        [-0.05674231014100467, 0.929719438542501, 1.776883975525701],
    ]
    uniform = [[0.2398437584330116, 0.986713198354968], [0.20591986800825493, 0.4758571037749921]]
    assert torch.allclose(normals(keys, (3,)), single, atol=1e-6)
    assert torch.allclose(
        normals(keys, (3,), dtype=torch.float64), torch.tensor(double, dtype=torch.float64), atol=1e-14
    )
    assert torch.allclose(uniforms(keys, 2), torch.tensor(uniform, dtype=torch.float64), atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_and_tails_are_those_of_a_normal_law(dtype: torch.dtype) -> None:
    z = normals(_keys(40), (100_000,), dtype=dtype).double().flatten()
    count = len(z)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert float(z.pow(power).mean()) == pytest.approx(moment, abs=4.5 * (variance / count) ** 0.5), power
    for bound in (0.1, 1.0, 2.0, 3.0, 4.0):
        share = float(torch.special.erfc(torch.tensor(bound / 2**0.5, dtype=torch.float64)))
        assert float((z.abs() > bound).double().mean()) == pytest.approx(share, abs=4.5 * (share / count) ** 0.5), bound
    assert torch.isfinite(z).all()


def test_neighbours_are_independent() -> None:
    """Neighbouring counters, halves of a pair, samples, seeds, streams and splits: z and z² are uncorrelated."""
    count, numbers = 200, 5000
    z = normals(_keys(count), (numbers,)).double()
    others = {
        "counter": (z[:, :-1], z[:, 1:]),
        "second counter": (z[:, :-2], z[:, 2:]),
        "pair": (z[:, : numbers // 2], z[:, numbers // 2 :]),
        "sample": (z[:-1], z[1:]),
        "sample and counter": (z[:-1, :-1], z[1:, 1:]),
        "far sample": (z, normals(_keys(count, start=2**20), (numbers,)).double()),
        "seed": (z, normals(_keys(count, seed=1), (numbers,)).double()),
        "precision": (z, normals(_keys(count), (numbers,), dtype=torch.float64)),
        "split": (z, normals(sample_keys(0, "test", range(count), stream="a test"), (numbers,)).double()),
        "stream": (z, normals(sample_keys(0, "train", range(count), stream="a tesu"), (numbers,)).double()),
    }
    for name, (a, b) in others.items():
        bound = 4.5 / a.numel() ** 0.5
        assert abs(float((a * b).mean())) < bound, name
        assert abs(float(((a.square() - 1) * (b.square() - 1)).mean())) < 2 * bound, name


def test_a_sample_is_the_same_in_any_batch_and_on_any_number_of_threads() -> None:
    threads = torch.get_num_threads()
    for length in (1, 101, PIECE // 3, PIECE + 1, 2 * PIECE + 7):
        for dtype in (torch.float32, torch.float64, torch.complex64):
            whole = normals(_keys(7), (length,), dtype=dtype)
            try:
                torch.set_num_threads(3)
                assert torch.equal(whole, normals(_keys(7), (length,), dtype=dtype)), length
            finally:
                torch.set_num_threads(threads)
            for index in (0, 3, 6):
                assert torch.equal(whole[index], normals(_keys(1, start=index), (length,), dtype=dtype)[0]), length


def test_whole_pieces_do_not_depend_on_how_many_follow() -> None:
    short, long = (normals(_keys(2), (count * PIECE,)) for count in (1, 2))
    assert torch.equal(short, long[:, :PIECE])


def test_no_two_samples_share_a_key() -> None:
    words = [
        sample_keys(seed, split, range(3000), stream="a test")[:, 0]
        for seed in (5, 6)
        for split in ("train", "validation", "test")
    ]
    assert torch.cat(words).unique().numel() == 18000


def test_complex_numbers_have_the_stated_power() -> None:
    z = normals(_keys(10), (40, 500), dtype=torch.complex64, std=3.0)
    assert z.shape == (10, 40, 500)
    assert float(z.abs().square().mean()) == pytest.approx(9.0, rel=0.02)
    assert float(z.real.square().mean()) == pytest.approx(4.5, rel=0.03)


def test_the_meta_device_gives_shapes_and_needs_no_value() -> None:
    keys = sample_keys(0, "train", range(4), stream="a test", device="meta")
    assert normals(keys, (3, PIECE), dtype=torch.complex64).shape == (4, 3, PIECE)
    assert normals(keys, (5,)).device.type == uniforms(keys, 2).device.type == "meta"
