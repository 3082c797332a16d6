"""Where files are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder(kind: str, variable: str) -> Path:
    """The folder named by the environment variable `variable`, else the user's cache for `kind`, such as "vlista/data".

    On Linux the cache is $XDG_CACHE_HOME/kind, else ~/.cache/kind.
    """
    chosen = os.environ.get(variable)
    return Path(chosen).expanduser() if chosen else user_cache_path(kind, appauthor=False)
