"""The paper's experiments, each a study. A new one is one module and one line in `EXPERIMENTS`."""

EXPERIMENTS: dict[str, str] = {
    "synthetic": "vlista_core.experiments.synthetic:Synthetic",
    "mnist": "vlista_core.experiments.images:Mnist",
    "cifar10": "vlista_core.experiments.images:Cifar10",
    "mnist-fixed": "vlista_core.experiments.images:MnistFixed",
    "cifar10-fixed": "vlista_core.experiments.images:Cifar10Fixed",
    "ood": "vlista_core.experiments.ood:OutOfDistribution",
    "adaptation": "vlista_core.experiments.adaptation:Adaptation",
    "calibration": "vlista_core.experiments.calibration:Calibration",
    "reconstructions": "vlista_core.experiments.reconstructions:Reconstructions",
    "complexity": "vlista_core.experiments.complexity:Complexity",
}
"""Name -> module and class of the study, in the order of the report. Imported when asked for."""
