"""`chanest export`: an estimator as a file, or the list of what can be one."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from vlista_core.terminal import next_step, one_line_errors, out, tell

_NAME = "As in `chanest estimators`; left out, all are listed with their kinds of files."


@one_line_errors()
def export(
    name: Annotated[str | None, typer.Argument(help=_NAME)] = None,
    scenario: Annotated[str | None, typer.Argument(help="A shipped scenario or the path of a .toml file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The .pt2 or .onnx file to write.")] = None,
    trained_on: Annotated[str | None, typer.Option("--trained-on", help="Take the weights of this scenario.")] = None,
) -> None:
    """Write an estimator to a file that runs without this package: .pt2 for PyTorch, .onnx for ONNX runtimes."""
    if name is None:
        _list_forms()
        return
    from chanest.estimators import estimator_class
    from chanest.export import check_exported, exported, form_of, in_words
    from chanest.problem import ChannelProblem
    from chanest.scenario import load_scenario
    from chanest.weights import get_estimator

    estimator_class(name)
    if scenario is None or output is None:
        raise ValueError(f"export needs a scenario and a file: chanest export {name} SCENARIO -o {name}.pt2")
    problem, form = ChannelProblem(load_scenario(scenario)), form_of(output)
    check_exported(name, form, problem)
    lender = None if trained_on is None else load_scenario(trained_on).name
    estimator = get_estimator(name, problem, trained_on=lender, guarded=False, substitute=False)
    path = exported(estimator, problem, output)
    tell(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB: {in_words(problem, form)}")
    tell("y is as received, E|h|² = 1 or so, noise_var E|n|² per antenna; no guard and no other units in the file")
    read = "torch.export.load({0!r}).module()" if form == "pt2" else "onnxruntime.InferenceSession({0!r})"
    next_step(f"in Python, without this package: {read.format(shlex.quote(str(path)).strip(chr(39)))}")


def _list_forms() -> None:
    from rich.table import Table

    from chanest.estimators import estimator_class, estimator_names
    from chanest.export import FORMS, forms_of

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("name", *(f".{form}" for form in FORMS)):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it is")
    every = [name for name in estimator_names() if forms_of(name)]
    for name in every:
        marks = ("yes" if form in forms_of(name) else "–" for form in FORMS)
        table.add_row(name, *marks, estimator_class(name).summary)
    out.print(table)
    others = [name for name in estimator_names() if name not in every]
    tell(f"{len(every)} of {len(estimator_names())} estimators can be exported")
    tell(f"no form, for most since how long they work depends on y: {', '.join(others)}")
    next_step("chanest export NAME SCENARIO -o FILE.pt2")
