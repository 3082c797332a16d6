"""What a publication is: a repository at a commit, the files it must hold, and comparisons with ours."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from pydantic import PrivateAttr

from chanest.studies.published import PublishedStudy
from vlista_core.study import Cell, Context, Row


class Publication(ABC):
    """The code and weights of others, read from a clone at run time, and what is run beside them."""

    name: ClassVar[str]
    """On the command line."""
    repository: ClassVar[str]
    """On GitHub, as owner/name."""
    commit: ClassVar[str]
    """That the recorded figures were made with."""
    files: ClassVar[tuple[str, ...]]
    """What the clone must hold besides its code: weights, matrices, test vectors."""

    def __init__(self, clone: Path) -> None:
        """clone: the folder that the user has cloned the repository into; see `check_clone`."""
        check_clone(type(self), clone)
        self.clone = clone.resolve()

    @abstractmethod
    def comparisons(self, samples: int | None) -> tuple[str, ...]:
        """Names of the comparisons, see `chanest.studies.published`; samples None takes as many as were recorded."""

    @abstractmethod
    def compare(self, cell: Cell, context: Context) -> Row:
        """Theirs, ours and bounds on the draws of one comparison."""


class Harness(PublishedStudy):
    """The study with the code that runs it; publications that have no clone cannot be run."""

    _publication: Publication = PrivateAttr()

    @classmethod
    def of(cls, publication: Publication, samples: int | None) -> Harness:
        """The comparisons of one publication."""
        made = cls(comparisons=publication.comparisons(samples))
        made._publication = publication
        return made

    def timed(self, cell: Cell) -> bool:
        return True

    def run(self, cell: Cell, context: Context) -> Row:
        return {**self._publication.compare(cell, context), "clone": self._publication.commit}


def check_clone(publication: type[Publication], clone: Path) -> None:
    """ValueError unless the folder holds the repository at the right commit with all its files."""
    repository, commit = publication.repository, publication.commit
    if not clone.is_dir():
        raise ValueError(f"--clone: there is no folder {clone}; clone {repository} from GitHub and give its path")
    asked = ["git", "-C", str(clone), "rev-parse", "--show-prefix", "HEAD"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    if len(said) != 2 or said[0]:
        raise ValueError(f"--clone: {clone} is no clone; clone {repository} from GitHub and give its path")
    if said[1] != commit:
        raise ValueError(
            f"--clone: {clone} is at commit {said[1][:12]}, the figures are of {commit[:12]} of {repository}; take it "
            f"with: git -C {clone} checkout {commit[:12]}"
        )
    missing = [name for name in publication.files if not (clone / name).is_file()]
    if missing:
        raise ValueError(
            f"--clone: {clone} lacks {missing[0]} ({len(missing)} of {len(publication.files)} files); bring it back with: "
            f"git -C {clone} checkout {commit[:12]} -- '{missing[0]}'"
        )
