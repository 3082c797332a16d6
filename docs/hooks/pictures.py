"""The pictures of docs/pictures: terminal screens at 80 columns, and pages of the site at 1280 and 390 pixels, light and dark.

python docs/hooks/pictures.py [terminal] [site]    (a few minutes; the site without its examples and reports)
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS, COLOURS = 80, 48
SCREENS = {
    "terminal-evaluate": "chanest evaluate cdl_c_upa64x4 -e ls,lmmse,atom-lmmse,gated-lmmse --snr 0:5:20 --channels 10 -o out",
    "terminal-bench": "chanest bench -e ls,lmmse,gated-lmmse --scenarios cdl_c_upa64x4,umi_upa64x4 --channels 10 -o out-bench",
    "terminal-estimators": "chanest estimators cdl_c_upa64x4",
}
PAGES = {"site-home": "index.html", "site-estimators": "concepts/estimators/index.html"}
WIDTHS = {1280: 800, 390: 760}


def terminal(folder: Path) -> None:
    """Run each command in a terminal of 80 columns, and draw what it shows."""
    for name, command in SCREENS.items():
        screen = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
        screen.print(Text(f"$ {command}", style="bold"))
        screen.print(Text.from_ansi(_shown(command, folder)))
        drawn = screen.export_svg(title="chanest", theme=MONOKAI)
        drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL).replace("Fira Code", "monospace")
        (PICTURES / f"{name}.svg").write_text(re.sub(r"\n\s*\n+", "\n", drawn), encoding="utf-8")


def _shown(command: str, folder: Path) -> str:
    """What a command shows at its end in a terminal: no bar is left then."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "LINES": "60",
        "TERM": "xterm-256color",
        "PYTHONPATH": str(ROOT),
    }
    program = [sys.executable, "-m", *command.split()]
    process = subprocess.Popen(
        program, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    read = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(ours, 65536):
            read += part
    if process.wait():
        raise RuntimeError(f"{command} failed")
    return read.decode().replace("\r\n", "\n").rstrip()


def site(folder: Path) -> None:
    """Build the site, and take its pages as a browser shows them."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder / "site")]
    environment = {**os.environ, "QUICK_SITE": "true", "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    with _served(folder / "site") as address, sync_playwright() as play:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for width, height in WIDTHS.items():
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                for name, path in PAGES.items():
                    page.goto(f"{address}/{path}", wait_until="networkidle")
                    page.screenshot(path=folder / "shot.png")
                    _kept(folder / "shot.png", f"{name}-{width}-{scheme}")
                page.close()
        browser.close()


class _Silent(SimpleHTTPRequestHandler):
    """Serves, and says nothing of it."""

    def log_message(self, format: str, *args: object) -> None:
        """See BaseHTTPRequestHandler."""


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The address at which this machine serves a folder: from files alone the search of the site does not start."""
    handler = partial(_Silent, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _kept(shot: Path, name: str) -> None:
    """A screenshot with few colours, which is a third of its size."""
    Image.open(shot).convert("RGB").quantize(COLOURS).save(PICTURES / f"{name}.png", optimize=True)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for name, make in (("terminal", terminal), ("site", site)):
            if name in sys.argv[1:] or len(sys.argv) == 1:
                make(Path(place))


if __name__ == "__main__":
    main()
