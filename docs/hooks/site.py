"""What the site is made of besides its pages: README and other files of the top folder, notes and results as they are, the live
report of every study, the keys of a scenario and the commands from the code, and the examples with what they print.

Examples and reports are kept in .cache/site under the digest of all they depend on, so that a second build takes seconds.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import chanest
from chanest.cli import app as chanest_app
from chanest.frontend.section import AnyPattern
from chanest.scenario import DataSection, FrontendSection, Scenario
from chanest.studies import STUDIES
from vlista_core.experiments import EXPERIMENTS
from vlista_core.experiments.cli import app as experiments_app
from vlista_core.study.page import write_page

ROOT = Path(__file__).parents[2]
DOCS, CACHE = ROOT / "docs", ROOT / ".cache" / "site"
TOP = {"overview.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages that are files of the top folder."""
EXAMPLES: dict[str, tuple[str, ...]] = {
    "cdl_channel_estimation": (),
    "own_estimator": ("--channels", "20", "--against", "ls,lmmse,universal,gated-lmmse"),
    "varying_beams": ("--seconds", "15"),
    "link_level": ("--blocks", "40", "--estimators", "ls,gated-lmmse"),
    "novelty_detection": (),
    "sparse_recovery": (),
}
"""Name -> arguments with which the gallery runs it."""
LOG = logging.getLogger("mkdocs.hooks.site")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The sections of the navigation that list folders."""
    filled = {
        "Gallery": ["gallery/index.md", *({_heading(name): f"gallery/{name}.md"} for name in EXAMPLES)],
        "Results": ["results/README.md", {"The paper's tables": "paper.md"}, *_result_pages()],
        "Notes": [{_title(path): f"notes/{path.name}"} for path in sorted((DOCS / "notes").glob("*.md"))],
    }
    config.nav = [{name: filled.get(name, pages) for name, pages in entry.items()} for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages that are made from something else."""
    for page, source in TOP.items():
        _add(files, config, page, (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "]("))
    _add(files, config, "reference/scenario.md", _scenario_page())
    _add(files, config, "reference/commands.md", _command_page())
    quick = bool(dict(config.extra).get("quick"))
    for path, content in (*_gallery(quick=quick), *_reports(quick=quick)):
        _add(files, config, path, content)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The tables of a study below its name, its figures and the way to its live report."""
    place = Path(page.file.src_uri)
    if place.name != "table.md" or place.parts[0] != "results":
        return markdown
    folder = DOCS / place.parent
    about = [
        f"# {'/'.join(place.parts[1:-1])}",
        "[Live report: figures to hover and zoom, tables to sort](report.html)",
    ]
    if (folder / "README.md").is_file():
        about.append("[How it was run](README.md)")
    return "\n\n".join(
        [*about, *(f"![{image.stem}]({image.name})" for image in sorted(folder.glob("*.png"))), markdown]
    )


def _add(files: Files, config: MkDocsConfig, path: str, content: str | bytes) -> None:
    files.append(File.generated(config, path, content=content))


def _title(path: Path) -> str:
    """The first heading of a page."""
    return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").strip()


def _heading(example: str) -> str:
    return example.replace("_", " ").capitalize()


def _studies() -> Iterator[Path]:
    """The folders of committed studies."""
    yield from sorted(path.parent for path in (DOCS / "results").rglob("study.json"))


def _result_pages() -> list[dict[str, str]]:
    return [
        {str(folder.relative_to(DOCS / "results")): f"{folder.relative_to(DOCS)}/table.md"} for folder in _studies()
    ]


def _reports(*, quick: bool) -> Iterator[tuple[str, bytes]]:
    """(path on the site, content) of the page of every committed study. quick: nothing is drawn, the pages are empty."""
    code = _code("vlista_core/study", "vlista_core/experiments", "chanest/studies", "chanest/plotting")
    code += [ROOT / "vlista_core" / name for name in ("charts.py", "plotting.py")]
    for folder in _studies():
        registry = EXPERIMENTS if "paper" in folder.parts else STUDIES

        def make(target: Path, folder: Path = folder, registry: dict[str, str] = registry) -> None:
            with tempfile.TemporaryDirectory() as place:
                shutil.copytree(folder, Path(place) / folder.name)
                shutil.copy(write_page(Path(place) / folder.name, registry), target / "report.html")

        if quick:
            yield f"{folder.relative_to(DOCS)}/report.html", b""
            continue
        made = _cached(folder.name, [folder / "rows.jsonl", folder / "study.json", *code], make)
        yield f"{folder.relative_to(DOCS)}/report.html", (made / "report.html").read_bytes()


def _gallery(*, quick: bool) -> Iterator[tuple[str, str | bytes]]:
    """Each example with what it prints and draws, and their list. quick: the scripts alone, nothing is run."""
    listed = [
        "# Gallery",
        "Short scripts to copy from, with what they print. They are run when this site is built.",
        "",
    ]
    code = _code("vlista_core", "chanest")
    for name, arguments in EXAMPLES.items():
        script = ROOT / "examples" / f"{name}.py"
        text = script.read_text(encoding="utf-8")
        first = text.split('"""')[1].strip().splitlines()[0]

        def make(target: Path, script: Path = script, arguments: tuple[str, ...] = arguments) -> None:
            _run(script, arguments, target)

        listed.append(f"- [{_heading(name)}]({name}.md): {first}")
        whole = f"## The script\n\n```python\n{text}```"
        if quick:
            yield f"gallery/{name}.md", f"# {_heading(name)}\n\n{first}\n\n{whole}"
            continue
        made = _cached(name, [script, *code], make, *arguments)
        command = " ".join(["python", f"examples/{name}.py", *arguments])
        pictures = sorted(made.rglob("*.png"))
        shown = [f"![{picture.stem}]({name}/{picture.name})" for picture in pictures]
        printed = (made / "printed.txt").read_text(encoding="utf-8")
        parts = [f"# {_heading(name)}", first, f"    {command}", *shown, "```text", printed, "```"]
        parts += [f"[The report that it writes]({name}/report.html)"] if (made / "report.html").is_file() else []
        yield f"gallery/{name}.md", "\n\n".join([*parts, whole])
        for extra in (*pictures, *made.glob("report.html")):
            yield f"gallery/{name}/{extra.name}", extra.read_bytes()
    yield "gallery/index.md", "\n".join(listed)


def _run(script: Path, arguments: Iterable[str], target: Path) -> None:
    """Run an example; what it prints goes to printed.txt in `target`, its files beside it."""
    with tempfile.TemporaryDirectory() as place:
        environment = {**os.environ, "COLUMNS": "110", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(script), *arguments, "--output", str(target)]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script.name} failed: {done.stderr.strip().splitlines()[-1]}")
    printed = done.stdout.replace(str(target), "out").strip()
    (target / "printed.txt").write_text(printed, encoding="utf-8")


def _cached(name: str, sources: Iterable[Path], make: Callable[[Path], None], *words: str) -> Path:
    """The folder that `make` has filled, kept while the sources and the words stay as they are."""
    found = hashlib.sha256(" ".join(words).encode())
    for path in sources:
        found.update(path.read_bytes())
    folder = CACHE / f"{name}-{found.hexdigest()[:16]}"
    if not folder.is_dir():
        LOG.info("making %s", name)
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as place:
            made = Path(place) / "made"
            made.mkdir()
            make(made)
            made.rename(folder)
    return folder


def _code(*places: str) -> list[Path]:
    """Source files of some folders."""
    found = (path for place in places for path in (ROOT / place).rglob("*"))
    return sorted(path for path in found if path.suffix in (".py", ".js", ".css", ".json") and path.is_file())


def _scenario_page() -> str:
    """Every key of a scenario file, and the scenarios that are shipped."""
    kinds: list[type[BaseModel]] = list(get_args(_annotation(Scenario, "channel")))
    parts = [
        "# Scenario keys",
        "A scenario is a TOML file. A key that is not listed here, or a value that is not allowed, is refused in one sentence.",
        _keys("At the top", Scenario),
        _keys("`[bs]` and `[ue]`", Scenario.model_fields["bs"].annotation),
        _keys("`[frontend]`", FrontendSection),
        *(_keys(f"`[frontend.pattern]` of kind {_kind(kind)}", kind) for kind in get_args(AnyPattern)),
        *(_keys(f"`[channel]` of kind {_kind(kind)}", kind) for kind in kinds),
        _keys("`[data]`", DataSection),
        "## Shipped scenarios\n\n| name | what it is |\n|---|---|",
    ]
    shipped = [f"| `{name}` | {chanest.load_scenario(name).description} |" for name in chanest.scenario_names()]
    return "\n\n".join(parts) + "\n" + "\n".join(shipped)


def _annotation(model: type[BaseModel], key: str) -> Any:
    return model.model_fields[key].annotation


def _kind(section: type[BaseModel]) -> str:
    return ", ".join(f"`{each}`" for each in get_args(_annotation(section, "kind")))


def _keys(title: str, section: Any) -> str:
    """A table of the keys of a section."""
    lines = [f"| `{name}` | {_allowed(field)} | {_default(field)} | {field.description or ''} |"
             for name, field in section.model_fields.items() if name != "kind"]  # fmt: skip
    about, heading = (section.__doc__ or "").strip(), "| key | type | default | what |\n|---|---|---|---|"
    return "\n".join([f"## {title}\n", about, "", heading, *lines])


def _allowed(field: FieldInfo) -> str:
    """The type of a key in words, with its limits."""
    text = re.sub(r"\b(?:\w+\.)+", "", str(getattr(field.annotation, "__name__", field.annotation)))
    if choices := [str(each) for each in get_args(field.annotation) if isinstance(each, str)]:
        text = ", ".join(choices)
    limits = (str(each) for each in field.metadata if "=" in str(each))
    return ", ".join([text.replace("|", "\\|"), *limits])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    return "" if isinstance(field.default, BaseModel) else f"`{field.default!r}`"


def _command_page() -> str:
    """Commands and options of both programs."""
    parts = ["# Commands"]
    for name, app in {"chanest": chanest_app, "python -m vlista_core.experiments": experiments_app}.items():
        group: Any = typer.main.get_command(app)
        for command, each in group.commands.items():
            lines = [f"| `{'` `'.join(option.opts)}` | {option.help or ''} |" for option in each.params if option.opts]
            table = "\n".join(["| option | what |", "|---|---|", *lines])
            parts.append(f"## {name} {command}\n\n{(each.help or '').strip()}\n\n{table}")
    return "\n\n".join(parts)
