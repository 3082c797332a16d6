"""The site is built without a warning, and its search finds what people look for. Examples and reports are left out here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'vlista[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "QUICK_SITE": "true", "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("genie", "concepts/bounds/"),
        ("DMRS", "reference/chanest/"),
        ("noise_var", "concepts/units/"),
        ("own_channels", "guides/own-data/"),
        ("horizontal_spacing", "reference/chanest/"),
        ("--trained-on", "reference/commands/"),
        ("delay_spread", "reference/scenario/"),
        ("EstimatorLayer", "guides/other-programs/"),
        (".pt2", "reference/commands/"),
    ],
)
def test_the_search_finds(site: Path, word: str, page: str) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    found = {entry["location"].split("#")[0] for entry in entries if word in entry["text"] + entry["title"]}
    assert page in found, sorted(found)


def test_every_note_result_and_example_is_there(site: Path) -> None:
    for path in (ROOT / "docs" / "notes").glob("*.md"):
        assert (site / "notes" / path.stem / "index.html").is_file(), path
    for path in (ROOT / "docs" / "results").rglob("study.json"):
        assert (site / path.parent.relative_to(ROOT / "docs") / "table" / "index.html").is_file(), path
    for path in (ROOT / "examples").glob("*.py"):
        assert (site / "gallery" / path.stem / "index.html").is_file(), path


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis" not in text
    assert 'src="http' not in text
