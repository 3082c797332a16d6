"""Users of a ray-traced scene: where they stand, the paths that reach them, and the file that keeps both.

Paths are kept without arrays, orientations and phases: angles at both ends, delay and the 2×2 matrix between the θ and φ
components of the fields, so that one tracing serves every array.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from chanest.channels.source import uniform_draws
from vlista_core.draws import Split, sample_generators
from vlista_core.files import digest, versions
from vlista_core.tensorfile import Json, Kind, check_fit, read, read_header, write

SplitBy = Literal["tile", "draw"]
Position = tuple[float, float, float]

KIND = Kind("traced-users", "file of traced users", 1, (("site", dict), ("split", str), ("users", int)))
TILE = 10.0
"""Metres. All users of a tile belong to one split where tiles decide."""
_SHARES: tuple[tuple[float, Split], ...] = ((0.6, "train"), (0.75, "validation"), (1.0, "test"))
"""Up to which hash, in [0, 1), a tile belongs to a split."""


@dataclass(frozen=True)
class Site:
    """Everything that decides the users of a scene and their paths. Metres and hertz."""

    scene: str
    """One that sionna-rt ships, by name."""
    transmitters: tuple[Position, ...]
    """Of the base stations; each user is served by one of them, drawn at random."""
    area: tuple[float, float, float, float]
    """Least x, least y, largest x and largest y of the rectangle in which users stand."""
    height: float = 1.5
    carrier: float = 28e9
    depth: int = 5
    """Most interactions of a path."""
    samples: int = 100_000
    """Rays that every transmitter shoots."""
    line_of_sight: bool = True
    reflection: bool = True
    diffraction: bool = False
    scattering: bool = False
    refraction: bool = False
    fewest_paths: int = 1
    """A position with fewer paths has no user."""
    most_paths: int = 25
    """The strongest so many paths of a user are kept."""
    split_by: SplitBy = "tile"
    """tile: training, validation and test users stand on different tiles; draw: anywhere, drawn independently."""
    seed: int = 0
    """Of the positions. The seed of a sample chooses orientation and phases, not where its user stands."""

    def name(self) -> str:
        """Scene and hash: the same for two sites whose users are the same."""
        return f"{self.scene}-{digest(self.as_json())[:8]}"

    def as_json(self) -> dict[str, Json]:
        return cast("dict[str, Json]", asdict(self))

    def candidates(self, indices: Sequence[int], split: Split) -> tuple[Tensor, Tensor, Tensor]:
        """Of the draws `indices` of a split: positions [k, 3], transmitters [k], and which belong to the split [k]."""
        draws = uniform_draws(sample_generators(self.seed, split, indices, "users"), 3).double()
        low, high = torch.tensor(self.area, dtype=torch.float64).split(2)
        place = low + (high - low) * draws[:, :2]
        positions = torch.cat([place, torch.full((len(place), 1), self.height, dtype=torch.float64)], 1)
        transmitter = (draws[:, 2] * len(self.transmitters)).long()
        ours = [self.split_by == "draw" or split_of_tile(x, y, self.seed) == split for x, y in place.tolist()]
        return positions.float(), transmitter, torch.tensor(ours)


def split_of_tile(x: float, y: float, seed: int) -> Split:
    """The split that the tile of a place belongs to, by a hash: 60 % train, 15 % validation, 25 % test."""
    word = hashlib.sha256(f"{seed} {int(x // TILE)} {int(y // TILE)}".encode()).digest()[:4]
    share = int.from_bytes(word, "big") / 2**32
    return next(split for limit, split in _SHARES if share < limit)


@dataclass(frozen=True)
class TracedUsers:
    """Users 0 … users - 1 of one split of a site. The paths of all users stand one after the other."""

    positions: Tensor
    """[users, 3]."""
    transmitter: Tensor
    """Which of the site's, int64: [users]."""
    counts: Tensor
    """Paths of every user, int64: [users]."""
    gain: Tensor
    """Sum of the powers of a user's paths, relative to what was sent, in dB: [users]."""
    delays: Tensor
    """Seconds after the first path of the user, ascending: [paths]."""
    angles: Tensor
    """At the user: azimuth and zenith; at the base station: azimuth and zenith: [paths, 4]."""
    matrices: Tensor
    """From the base station's θ and φ to the user's, complex64, powers of a user adding up to one: [paths, 2, 2]."""

    def __len__(self) -> int:
        return len(self.counts)

    @classmethod
    def joined(cls, parts: "Sequence[TracedUsers]") -> "TracedUsers":
        """All users of the parts, in their order."""
        return cls(*(torch.cat([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def first(self, count: int) -> "TracedUsers":
        """Users 0 … count - 1."""
        paths = int(self.counts[:count].sum())
        return TracedUsers(
            self.positions[:count], self.transmitter[:count], self.counts[:count], self.gain[:count],
            self.delays[:paths], self.angles[:paths], self.matrices[:paths],
        )  # fmt: skip

    def turned(self, site: Site) -> "TracedUsers":
        """The same with every user straight ahead of its base station: at azimuth zero. Fields along θ and φ turn with it."""
        away = self.positions.double() - torch.tensor(site.transmitters, dtype=torch.float64)[self.transmitter]
        bearing = torch.repeat_interleave(torch.atan2(away[:, 1], away[:, 0]), self.counts)
        angles = self.angles.double()
        for azimuth in (angles[:, 0], angles[:, 2]):
            azimuth.copy_(torch.remainder(azimuth - bearing + math.pi, 2 * math.pi) - math.pi)
        return replace(self, angles=angles.float())

    @cached_property
    def shares(self) -> Tensor:
        """Of every path in the power of its user, adding up to one: [paths]."""
        power = self.matrices.abs().double().square().sum((1, 2))
        user = torch.repeat_interleave(torch.arange(len(self)), self.counts)
        total = torch.zeros(len(self), dtype=power.dtype).index_add(0, user, power)
        return (power / total[user]).float()

    @cached_property
    def strength(self) -> Tensor:
        """Amplitudes of the entries of every matrix with half a squared norm of one: [paths, 2, 2]."""
        amplitude = self.matrices.abs()
        return amplitude * (2 / amplitude.square().sum((1, 2), keepdim=True)).sqrt()

    @cached_property
    def phases(self) -> Tensor:
        """Of the entries of every matrix: [paths, 2, 2]."""
        return self.matrices.angle()

    def places(self, chosen: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """Where the paths of some users stand, `most` for each, and which of them are real; padding repeats the last path.

        chosen: [batch] -> [batch, most] and [batch, most].
        """
        place, counts = torch.arange(most), self.counts[chosen, None]
        first = torch.cumsum(self.counts, 0)[chosen, None] - counts
        return first + torch.minimum(place, counts - 1), place < counts

    def write(self, path: Path, site: Site, split: Split) -> None:
        """Write the users of a split of a site, whole or not at all; the matrices in half precision."""
        tensors = {each.name: getattr(self, each.name) for each in fields(self)}
        pairs = torch.view_as_real(self.matrices).half()
        short = {
            "transmitter": self.transmitter.to(torch.int16),
            "counts": self.counts.to(torch.int16),
            "matrices": pairs,
        }
        header: Mapping[str, Json] = {
            "site": site.as_json(), "split": split, "users": len(self), "versions": versions("sionna-rt", "mitsuba"),
        }  # fmt: skip
        write(path, KIND, {**tensors, **short}, header)

    @classmethod
    def read(cls, path: Path) -> "TracedUsers":
        """The users of a file; ValueError where it is damaged or no such file."""
        tensors, header = read(path, KIND)
        users, paths = cast(int, header["users"]), int(tensors["counts"].sum()) if "counts" in tensors else 0
        half, single, short = torch.float16, torch.float32, torch.int16
        check_fit(path, "a file of traced users", tensors, {
            "positions": torch.empty(users, 3, dtype=single), "transmitter": torch.empty(users, dtype=short),
            "counts": torch.empty(users, dtype=short), "gain": torch.empty(users, dtype=single),
            "delays": torch.empty(paths, dtype=single), "angles": torch.empty(paths, 4, dtype=single),
            "matrices": torch.empty(paths, 2, 2, 2, dtype=half),
        })  # fmt: skip
        if users < 1 or int(tensors["counts"].min()) < 1:
            raise ValueError(f"{path} has a user without paths, so it is no file of traced users; trace it again")
        return cls(
            positions=tensors["positions"], transmitter=tensors["transmitter"].long(), counts=tensors["counts"].long(),
            gain=tensors["gain"], delays=tensors["delays"], angles=tensors["angles"],
            matrices=torch.view_as_complex(tensors["matrices"].float()),
        )  # fmt: skip


def holds(path: Path, site: Site, split: Split, users: int) -> bool:
    """Whether a file is there with so many users of a split of a site."""
    if not path.is_file():
        return False
    header = read_header(path, KIND)
    same = header["split"] == split and header["site"] == _plain(site.as_json())
    return same and cast(int, header["users"]) >= users


def _plain(content: dict[str, Json]) -> dict[str, Json]:
    """As JSON has it: tuples are lists."""
    return {key: _list(value) for key, value in content.items()}


def _list(value: Json) -> Json:
    return [_list(each) for each in value] if isinstance(value, (list, tuple)) else value
