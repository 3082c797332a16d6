"""What the site tells a reader to type: every Python block of a page runs, in order; every command is understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from chanest.cli import app as chanest_app
from vlista_core.experiments.cli import app as experiments_app

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in ("notes", "results"))
BLOCK = re.compile(r'```(python|toml)(?: title="(.*?)")?\n(.*?)```', flags=re.DOTALL)
APPS = {"chanest": chanest_app, "python -m vlista_core.experiments": experiments_app}
COMMAND = re.compile(rf"^    ({'|'.join(APPS)}) (.*?)(?:\s+#.*)?$", flags=re.MULTILINE)


def _blocks(page: Path) -> list[tuple[str, str, str]]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def _commands(page: Path) -> list[tuple[str, str]]:
    return COMMAND.findall(page.read_text(encoding="utf-8"))


def _name(page: Path) -> str:
    return page.relative_to(DOCS.parent).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page)], ids=_name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for kind, title, text in _blocks(page):
        if kind == "toml":
            Path(title).write_text(text, encoding="utf-8")
        else:
            exec(compile(text, _name(page), "exec"), namespace)


@pytest.mark.parametrize("page", [page for page in [*PAGES, README] if _commands(page)], ids=_name)
def test_the_commands_of_a_page_are_understood(page: Path) -> None:
    for program, arguments in _commands(page):
        group = typer.main.get_command(APPS[program])
        assert isinstance(group, TyperGroup)
        name, *others = shlex.split(arguments)
        if name.startswith("-"):
            assert name in [option for each in group.params for option in each.opts], name
            continue
        group.commands[name].make_context(name, others)


def test_every_guide_has_something_to_run() -> None:
    guides = [page for page in PAGES if page.parent.name == "guides"]
    assert len(guides) >= 10
    assert all(_blocks(page) or _commands(page) for page in guides)
