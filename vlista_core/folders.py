"""Where files are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder(kind: str, variable: str) -> Path:
    """The folder that the environment variable names, else the user's cache of `kind`.

    kind: a relative path such as "vlista/weights"; on Linux the cache is $XDG_CACHE_HOME, else ~/.cache.
    """
    chosen = os.environ.get(variable)
    return Path(chosen).expanduser() if chosen else user_cache_path() / kind
