"""Files from the web and from npm, into memory: nothing is on the disk before it has been verified."""

import http.client
import io
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from rich.progress import DownloadColumn, TransferSpeedColumn

from vlista_core.files import leftover_mark, remove_leftovers
from vlista_core.progress import terminal_bar
from vlista_core.validation import printable

_SECONDS_OF_SILENCE = 5.0
_NPM_SECONDS = 1800.0
_CHUNK = 1 << 18
LARGEST = 1 << 29
"""Bytes in a download or in an unpacked archive; more is refused."""

Files = Callable[[str], bytes | None]
"""The content of a file by its name, None where there is no such file: a folder, an archive or a web site."""


@dataclass(frozen=True)
class GzippedFiles:
    """A folder of a web site that has each stored file under its name with `.gz`."""

    name: str
    """Its address."""

    def open(self, dead_hosts: set[str]) -> Files:
        return lambda name: fetch(f"{self.name}/{name}", dead_hosts) if name.endswith(".gz") else None


@dataclass(frozen=True)
class Archive:
    """A tar file on a web site."""

    name: str
    """Its address."""

    def open(self, dead_hosts: set[str]) -> Files:
        return unpack(fetch(self.name, dead_hosts), self.name).get


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry, `name@version`, fetched by `npm pack`, which runs none of its code."""

    package: str

    @property
    def name(self) -> str:
        return f"npm pack {self.package}"

    def open(self, dead_hosts: set[str]) -> Files:
        npm = shutil.which("npm")
        if npm is None:
            raise ValueError(f"{self.name} was not tried: npm is not installed")
        options = ["--ignore-scripts", "--silent", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        command = [npm, "pack", self.package, *options]
        remove_leftovers(Path(tempfile.gettempdir()))
        mark = f".vlista-npm.{leftover_mark()}."
        with tempfile.TemporaryDirectory(prefix=mark) as folder, _progress_bar(self.package, None):
            try:
                run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_NPM_SECONDS)
            except (OSError, subprocess.TimeoutExpired) as fault:
                raise ValueError(f"{self.name} failed ({fault})") from fault
            packed = sorted(Path(folder).glob("*.tgz"))
            if run.returncode or not packed:
                last_words = " ".join(run.stderr.split())[-200:] or "it said nothing"
                raise ValueError(f"{self.name} failed with code {run.returncode} ({last_words})")
            return unpack(packed[0].read_bytes(), self.name).get


Source = GzippedFiles | Archive | NpmPackage
"""`open` gives its files; a ValueError says why they cannot be had. Hosts that do not answer are added to `dead_hosts`."""


def fetch(url: str, dead_hosts: set[str]) -> bytes:
    """The content of `url`, or a ValueError that says why not."""
    host = urlsplit(url).netloc
    if host in dead_hosts:
        raise ValueError(f"{url} was not asked: {host} did not answer before")
    content = io.BytesIO()
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS_OF_SILENCE) as answer:
            length = answer.headers.get("Content-Length", "")
            size = int(length) if length.isdigit() else None
            with _progress_bar(PurePosixPath(url).name, size) as advance:
                while chunk := answer.read(_CHUNK):
                    content.write(chunk)
                    advance(len(chunk))
                    if content.tell() > LARGEST:
                        raise ValueError(f"{url} is larger than {LARGEST >> 20} MB, more than any file looked for")
    except urllib.error.HTTPError as fault:
        raise ValueError(f"{url} answered {fault.code} {fault.reason}") from fault
    except (OSError, http.client.HTTPException) as fault:
        dead_hosts.add(host)
        reason = fault.reason if isinstance(fault, urllib.error.URLError) else fault
        raise ValueError(f"{url} cannot be read ({reason or type(fault).__name__})") from fault
    if size is not None and content.tell() != size:
        raise ValueError(f"{url} broke off after {content.tell()} of {size} bytes")
    return content.getvalue()


def unpack(archive: bytes, origin: str) -> dict[str, bytes]:
    """The files of a tar by their last name, in memory; an archive with a path, link or device that could reach
    outside its folder is refused whole."""
    files: dict[str, bytes] = {}
    room = LARGEST
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts or "\\" in member.name:
                    raise ValueError(f"{origin} was refused: its member {member.name!r} leaves the archive's folder")
                if not (member.isfile() or member.isdir()):
                    raise ValueError(f"{origin} was refused: its member {member.name!r} is a link or a device")
                room -= member.size
                if room < 0:
                    raise ValueError(f"{origin} was refused: it unpacks to more than {LARGEST >> 20} MB")
                if (content := tar.extractfile(member)) is not None:
                    files.setdefault(path.name, content.read())
    except (tarfile.TarError, EOFError, OSError, zlib.error) as fault:
        raise ValueError(f"{origin} is no whole tar archive ({printable(fault)})") from fault
    return files


@contextmanager
def _progress_bar(name: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Give a function that moves the bar by a number of bytes; nothing is shown unless both outputs are terminals."""
    with terminal_bar(DownloadColumn(), TransferSpeedColumn()) as bar:
        task = bar.add_task(name, total=size)
        yield lambda count: bar.advance(task, count)
