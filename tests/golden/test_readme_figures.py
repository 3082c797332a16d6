"""Every figure in a table of the README is a row of a committed study, to the last digit that is printed."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
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


def test_every_source() -> None:
    known = {
        (row["scenario"], row.get("name") or row.get("estimator"), row["snr_db"]): row["nmse_db"]
        for row in _rows("bench")
    }
    heading, *lines = _table("| source | `sbl`")
    assert len(lines) == 9
    for scenario, *figures in ([cell.strip("`") for cell in line] for line in lines):
        bound = "genie-angles" if scenario.startswith("cdl") else "genie-rays"
        for name, texts in zip([*(cell.strip("`") for cell in heading[1:-1]), bound], figures, strict=True):
            if texts != "–":
                for snr, text in zip((0.0, 10.0, 20.0), texts.split(" / "), strict=True):
                    assert _agrees(text, known[scenario, name, snr]), (scenario, name, snr)
