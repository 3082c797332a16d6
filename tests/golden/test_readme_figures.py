"""Every figure in a table of the README and of docs/paper.md is a row of a committed study, to the last digit that is printed.

So are the figures of its prose about the paper and about the accuracy of channel estimators. The sentences are found by their
words: where one is rewritten, its test is too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
TEXT = "\n\n".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/paper.md"))
MODELS = {
    "ISTA, canonical basis": "canonical", "ISTA, wavelets": "wavelet", "ISTA, sparse PCA": "spca", "BCS": "bcs",
    "LISTA": "lista", "DLISTA": "dlista", "A-DLISTA": "a-dlista", "A-DLISTA, adaptive": "a-dlista-adaptive",
    "VLISTA": "vlista", "VLISTA, one deviation for all": "vlista-constant", "VLISTA, anchored": "vlista-anchored",
    "linear MMSE": "lmmse",
}  # fmt: skip
"""How the README calls a row -> its name."""


def _rows(folder: str) -> list[dict[str, Any]]:
    lines = (RESULTS / folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [{**record["row"], **record["cell"]} for record in records]


def _table(first: str) -> list[list[str]]:
    """The cells, without emphasis, of the table whose heading begins so; the heading first."""
    lines = TEXT.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith(first))
    found = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        found.append([re.sub(r"\*+", "", cell).strip() for cell in line.strip("|").split("|")])
    return [found[0], *found[2:]]


def _agrees(printed: str, value: float) -> bool:
    digits = len(printed.partition(".")[2])
    return math.isclose(float(printed.replace("−", "-")), round(value, digits), abs_tol=1e-9)


def _prose(pattern: str) -> tuple[str, ...]:
    """What the groups of the pattern have matched in the text, which must hold it once; line ends are spaces there."""
    (found,) = re.finditer(pattern, " ".join(TEXT.split()))
    return found.groups()


def _numbers(text: str) -> list[str]:
    return re.findall(r"−?\d[\d,]*(?:\.\d+)?(?<!,)", text)


def _count(text: str) -> int:
    return int(text.replace(",", ""))


def test_accuracy() -> None:
    rows = [*_rows("cdl_c_upa64x4"), *_rows("cdl_c_upa64x4_a-dlista")]
    known = {(row["name"], row["snr_db"]): row["nmse_db"] for row in rows if "nmse_db" in row}
    heading, *lines = _table("| estimator | 0 dB")
    snrs = [float(cell.removesuffix(" dB")) for cell in heading[1:4]]
    assert len(lines) == 11
    for name, *figures in lines:
        who = re.match(r"`([\w-]+)`", name)
        key = who.group(1) if who else "genie-angles"
        assert who or name == "bound: genie (b)"
        assert all(_agrees(text, known[key, snr]) for text, snr in zip(figures, snrs, strict=False)), name
        if who:
            gap = sum(known[key, snr] - known["genie-angles", snr] for snr in snrs) / len(snrs)
            assert abs(float(figures[3]) - gap) < 0.06, (name, gap)


def test_the_set_up_of_the_diffusion_papers() -> None:
    known = {(row["name"], row["snr_db"]): row["nmse_db"] for row in _rows("score_64x16") if "nmse_db" in row}
    heading, ours, published = _table("| | 0 dB")
    assert published[1:] == ["−7.5", "−16", "−24.5", "−33"]
    for snr, text in zip(heading[1:], ours[1:], strict=True):
        assert _agrees(text, known["ray-sbl", float(snr.removesuffix(" dB"))])


def _ssim(folder: str, model: str, recipe: str | None, m: int) -> float:
    place = model, recipe, m
    values = [row["ssim"] for row in _rows(folder) if (row["model"], row.get("recipe"), row["measurements"]) == place]
    assert values, place
    return float(sum(values) / len(values))


def test_mnist_by_our_recipe() -> None:
    printed = json.loads((ROOT / "vlista_core/experiments/published.json").read_text(encoding="utf-8"))["mnist"]
    heading, *lines = _table("| SSIM at m =")
    assert len(lines) == 10
    for name, *figures in lines:
        model = MODELS[name.split(" (")[0]]
        recipe = None if model in ("canonical", "wavelet", "spca", "bcs", "lmmse") else "ours"
        for m, text in zip(heading[1:], figures, strict=True):
            ours, _, paper = text.partition(" ")
            assert _agrees(ours, _ssim("paper/mnist", model, recipe, int(m))), (name, m)
            stands = {"a-dlista-adaptive": "a-dlista", "vlista-anchored": "vlista"}.get(model, model)
            assert paper == (f"({printed[stands][m][0]:.3f})" if stands in printed else ""), (name, m)


def test_mnist_at_half_size() -> None:
    heading, *lines = _table("| SSIM, half size, m = 25")
    assert heading[1:] == ["the paper's recipe", "ours"]
    assert len(lines) >= 8
    for name, *figures in lines:
        model = MODELS[name]
        for recipe, text in zip(("paper", "ours"), figures, strict=True):
            if text != "–":
                solver = model in ("canonical", "wavelet", "spca", "bcs", "lmmse")
                assert _agrees(text, _ssim("paper/mnist-half", model, None if solver else recipe, 25)), (name, recipe)


def test_mnist_by_the_papers_recipe() -> None:
    printed = json.loads((ROOT / "vlista_core/experiments/published.json").read_text(encoding="utf-8"))["mnist"]
    heading, *lines = _table("| MNIST, m = 100")
    assert heading[1:] == ["printed", "the paper's recipe", "ours", "steps", "images seen", "seconds"]
    assert {"DLISTA", "A-DLISTA"} <= {line[0] for line in lines}
    for name, paper, found, ours, *spent in lines:
        model = MODELS[name]
        assert paper == f"{printed[model]['100'][0]:.3f}"
        assert _agrees(found, _ssim("paper/mnist", model, "paper", 100)), name
        assert ours == "–" or _agrees(ours, _ssim("paper/mnist", model, "ours", 100)), name
        (budget,) = (
            row["budget"]
            for row in _rows("paper/mnist")
            if (row["model"], row.get("recipe"), row["measurements"]) == (model, "paper", 100)
        )
        shown = [float(text.replace(",", "")) for text in spent]
        assert shown == [budget["steps"], budget["samples"], round(budget["seconds"])], name


def test_other_cells_by_the_papers_recipe() -> None:
    published = json.loads((ROOT / "vlista_core/experiments/published.json").read_text(encoding="utf-8"))
    heading, *lines = _table("| by the paper's recipe (printed)")
    assert len(lines) == 2
    for place, *figures in lines:
        data, m = place.split(", m = ")
        name = {"MNIST": "mnist", "CIFAR-10": "cifar10"}[data]
        for model, text in zip(heading[1:], figures, strict=True):
            if text != "–":
                found, _, paper = text.partition(" ")
                assert _agrees(found, _ssim(f"paper/{name}", MODELS[model], "paper", int(m))), (place, model)
                assert paper == f"({published[name][MODELS[model]][m][0]:.3f})", (place, model)


def test_prose_of_the_accuracy_table() -> None:
    (channels,) = _prose(r"NMSE in dB of ([\d,]+) test channels \(`chanest evaluate`")
    assert {row["channels"] for row in _rows("cdl_c_upa64x4")} == {_count(channels)}
    steps, batch = _prose(r"`a-dlista` was trained for ([\d,]+) steps of (\d+) channels")
    recipes = [row["recipe"] for row in _rows("cdl_c_upa64x4_a-dlista") if "recipe" in row]
    assert recipes
    for recipe in recipes:
        assert (recipe["steps"], recipe["batch_size"]) == (_count(steps), _count(batch))


def test_prose_of_the_seeds_at_half_size() -> None:
    said = _prose(r"By the paper's recipe LISTA has ([\d., ]+), DLISTA ([\d., ]+) and A-DLISTA ([\d., ]+):")
    for model, texts in zip(("lista", "dlista", "a-dlista"), said, strict=True):
        rows = [row for row in _rows("paper/mnist-half") if (row["model"], row.get("recipe")) == (model, "paper")]
        values = {row["seed"]: row["ssim"] for row in rows if row["measurements"] == 25}
        assert len(_numbers(texts)) == len(values)
        assert all(_agrees(text, values[seed]) for seed, text in enumerate(_numbers(texts))), model


def test_prose_of_vlistas_deviations_and_intervals() -> None:
    rows = {(row["model"], row["seed"]): row for row in _rows("paper/calibration-half")}
    samples, entries, steps, seed, covered = _prose(
        r"deviations vary by ([\d.]+) % over samples and ([\d.]+) % over entries after (\d+) steps \(seed (\d)\), and its own "
        r"90 % intervals cover ([\d.]+) %"
    )
    row = rows["vlista", int(seed)]
    ended = row["trace"][-1]
    for text, key in ((samples, "over_samples"), (entries, "over_entries")):
        assert _agrees(text, 100 * sum(ended[key]) / len(ended[key])), key
    assert row["budget"]["steps"] == int(steps)
    assert _agrees(covered, 100 * row["raw"]["coverage"]["90"])


def test_prose_of_vlista_against_one_deviation() -> None:
    rows = {(row["model"], row["seed"]): row for row in _rows("paper/calibration-half")}
    *likelihoods, bound = _prose(
        r"the log likelihood of test pixels is better by ([\d.]+) and ([\d.]+) nats \(two seeds\); the bound is ([\d.]+) nats "
        r"better for one"
    )

    def gains(value: Callable[[dict[str, Any]], float]) -> list[float]:
        return [value(rows["vlista", seed]) - value(rows["vlista-constant", seed]) for seed in range(2)]

    for text, gain in zip(likelihoods, gains(lambda row: row["raw"]["log_likelihood"]), strict=True):
        assert _agrees(text, gain)
    assert _agrees(bound, max(gains(lambda row: -min(entry[2] for entry in row["history"]))))


def test_prose_of_synthetic_vectors() -> None:
    samples, places, said = _prose(
        r"median NMSE in dB of ([\d,]+) test samples at m = ([\d, and]+): (.*?): three layers are few"
    )
    rows = [row for row in _rows("paper/synthetic") if row["phi"] == "varying"]
    medians = {(row["model"], row["measurements"]): row["nmse_db"] for row in rows}
    names = {
        "LISTA": "lista", "A-DLISTA": "a-dlista", "DLISTA": "dlista", "A-DLISTA, adaptive": "a-dlista-adaptive",
        "NALISTA with the weights of each Φ": "nalista-per-sample", "ISTA with 300 iterations": "ista",
    }  # fmt: skip
    parts = re.findall(r"([^;]*?)((?:−[\d.]+\d, ){3}−[\d.]+\d)", re.sub(r"\*+", "", said))
    assert {label.strip(" ;.").removesuffix(" has").rstrip(",") for label, _ in parts} == set(names)
    for label, figures in parts:
        model = names[label.strip(" ;.").removesuffix(" has").rstrip(",")]
        for m, text in zip(_numbers(places), _numbers(figures), strict=True):
            assert _agrees(text, medians[model, int(m)]), (model, m)
    assert {row["test_samples"] for row in rows if row["model"] in names.values()} == {_count(samples)}


def test_prose_of_the_table_by_our_recipe() -> None:
    images, few = _prose(r"SSIM of ([\d,]+) test images \(BCS: (\d+)\)")
    for row in _rows("paper/mnist"):
        assert row["test_samples"] == _count(few if row["model"] == "bcs" else images)


def _levels(folder: str) -> dict[tuple[str, str, float], float]:
    """(scenario, name, SNR) -> NMSE in dB, and under the name "bound" those of the bound."""
    known = {}
    for row in _rows(folder):
        known[row["scenario"], row["name"], row["snr_db"]] = row["nmse_db"]
        if row["kind"] == "bound":
            known[row["scenario"], "bound", row["snr_db"]] = row["nmse_db"]
    return known


@pytest.mark.parametrize("scenario", ["wideband_64x4", "ofdm_64x4", "scm_64x16"])
def test_scenarios_of_their_own(scenario: str) -> None:
    known = _levels(scenario)
    heading, *lines = _table(f"| `{scenario}` |")
    names = [re.search(r"`([\w-]+)`", line[0]) for line in lines]
    assert any(names)
    for name, line in zip(names, lines, strict=True):
        if name is not None or line[0].startswith("bound"):
            for snr, text in zip(heading[1:], line[1:], strict=True):
                level = float(snr.removesuffix(" dB").replace("−", "-"))
                assert _agrees(text, known[scenario, name.group(1) if name else "bound", level]), (line[0], snr)


def test_the_head_of_the_published_results() -> None:
    """Its lines are lines of the recorded table, which another test works out from the rows."""
    recorded = (RESULTS / "published" / "table.md").read_text(encoding="utf-8").replace("*", "").splitlines()
    _, *lines = _table("| published result")
    assert len(lines) >= 8
    for line in lines:
        assert f"| {' | '.join(line)} |" in recorded


def test_every_source() -> None:
    known = _levels("bench")
    heading, *lines = _table("| source | `sbl`")
    assert {line[0].strip("`") for line in lines} == {scenario for scenario, _, _ in known}
    names = [cell.strip("`") for cell in heading[1:]]
    for scenario, *figures in ([cell.strip("`") for cell in line] for line in lines):
        for name, texts in zip(names, figures, strict=True):
            if texts != "–":
                for snr, text in zip((0.0, 10.0, 20.0), texts.split(" / "), strict=True):
                    assert _agrees(text, known[scenario, name, snr]), (scenario, name, snr)
