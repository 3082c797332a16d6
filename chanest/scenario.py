"""A scenario file: arrays, channel, front end, SNR range and data-set sizes, checked when read."""

import json
import math
import tomllib
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from chanest.arrays import Array, Pattern, Polarization
from chanest.channels.cdl import CdlModel, CdlSource, Sector
from chanest.channels.paths import PathSource
from chanest.channels.source import DRAWS, Backend, ChannelSource, Direction
from chanest.channels.store import DataSet
from chanest.pilots import BeamKind
from vlista_core.draws import Split
from vlista_core.files import digest
from vlista_core.validation import printable


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ArraySection(_Section):
    """An array and the orientations it may take, in wavelengths and degrees."""

    rows: int = Field(ge=1, le=1024)
    columns: int = Field(ge=1, le=1024)
    spacing: float = Field(default=0.5, ge=1e-3, le=1e3)
    polarization: Polarization = "V"
    pattern: Pattern = "omni"
    yaw: float = Field(default=0.0, ge=-360, le=360)
    yaw_spread: float = Field(default=0.0, ge=0, le=180)
    tilt: float = Field(default=0.0, ge=-90, le=90)
    tilt_spread: float = Field(default=0.0, ge=0, le=90)

    def array(self) -> Array:
        """The geometry."""
        return Array(self.rows, self.columns, self.spacing, self.spacing, self.polarization, self.pattern)

    def sector(self) -> Sector:
        """The orientations, in radians."""
        return Sector(*(math.radians(value) for value in (self.yaw, self.yaw_spread, self.tilt, self.tilt_spread)))


class CdlSection(_Section):
    """CDL models (one, or an equal mixture); seconds, hertz, m/s. One subcarrier means the narrowband sum of taps."""

    kind: Literal["cdl"] = "cdl"
    models: tuple[CdlModel, ...] = Field(default=("C",), min_length=1, strict=False)
    carrier: float = Field(default=28e9, ge=1e6, le=1e13)
    delay_spread: float = Field(default=100e-9, ge=0, le=1)
    direction: Direction = "downlink"
    random_los_phase: bool = True
    speed: tuple[float, float] = Field(default=(0.0, 0.0), strict=False)
    snapshots: int = Field(default=1, ge=1, le=2**20)
    snapshot_interval: float = Field(default=0.0, ge=0, le=1e3)
    subcarriers: int = Field(default=1, ge=1, le=2**16)
    subcarrier_spacing: float = Field(default=120e3, ge=1, le=1e10)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not 0.0 <= self.speed[0] <= self.speed[1] <= 1e5:
            raise ValueError(
                f"speed must be [least, largest] with 0 <= least <= largest <= 100000, got {list(self.speed)}"
            )
        return self

    def frequencies(self) -> tuple[float, ...] | None:
        """Subcarriers around the carrier, or None for a narrowband channel."""
        if self.subcarriers == 1:
            return None
        return tuple(self.subcarrier_spacing * (k - self.subcarriers // 2) for k in range(self.subcarriers))


class PathSection(_Section):
    """Plain paths through a pulse of `taps` samples, on all subcarriers of the band."""

    kind: Literal["paths"]
    paths: int = Field(default=4, ge=1, le=2**16)
    taps: int = Field(default=4, ge=1)
    rolloff: float = Field(default=0.8, ge=0, le=1)
    carrier: float = Field(default=60e9, ge=1e6, le=1e13)
    direction: Direction = "downlink"
    subcarriers: int = Field(default=16, ge=1, le=2**16)
    subcarrier_spacing: float = Field(default=120e3, ge=1, le=1e10)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.subcarriers < self.taps:
            raise ValueError(f"subcarriers must be at least taps = {self.taps}, got {self.subcarriers}")
        return self

    def frequencies(self) -> tuple[float, ...]:
        """Subcarriers from zero up: those of a DFT of the symbol."""
        return tuple(self.subcarrier_spacing * k for k in range(self.subcarriers))


class FrontendSection(_Section):
    """Training: pilots of one transmit beam each, and a receiver of `chains` RF chains (0: fully digital)."""

    pilots: int = Field(ge=1, le=2**20)
    beams: BeamKind = "quantised"
    bits: int = Field(default=2, ge=1, le=16)
    chains: int = Field(default=0, ge=0)
    combiners: BeamKind = "quantised"
    whiten: bool = True


class DataSection(_Section):
    """Sizes of the stored splits and the seed of all of them."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    train: int = Field(default=50_000, ge=1, le=2**30)
    validation: int = Field(default=2_000, ge=1, le=2**30)
    test: int = Field(default=2_000, ge=1, le=2**30)


class Scenario(_Section):
    """A named set-up."""

    name: str = Field(min_length=1)
    description: str = ""
    bs: ArraySection
    ue: ArraySection
    channel: CdlSection | PathSection = Field(default=CdlSection(), discriminator="kind")
    frontend: FrontendSection
    snr_db: tuple[float, float] = Field(default=(-10.0, 30.0), strict=False)
    data: DataSection = DataSection()

    @field_validator("channel", mode="before")
    @classmethod
    def _cdl_unless_said(cls, value: object) -> object:
        return {"kind": "cdl", **value} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not -200.0 <= self.snr_db[0] <= self.snr_db[1] <= 200.0:
            allowed = "[lowest, highest] with -200 <= lowest <= highest <= 200"
            raise ValueError(f"snr_db must be {allowed}, got {list(self.snr_db)}")
        source, chains, pilots = self.source(), self.frontend.chains, self.frontend.pilots
        if chains > source.rx.ports:
            raise ValueError(f"frontend.chains must be at most {source.rx.ports}, the receive antennas, got {chains}")
        if self.frontend.beams == "dft" and pilots > source.tx.ports:
            allowed = f"at most {source.tx.ports}, the size of the DFT codebook"
            raise ValueError(f"frontend.pilots must be {allowed}, got {pilots}")
        return self

    def source(self, backend: Backend = "factored") -> ChannelSource:
        """The distribution of channels."""
        channel, bs, ue = self.channel, self.bs.array(), self.ue.array()
        if isinstance(channel, PathSection):
            return PathSource(
                bs, ue, channel.carrier, channel.direction, channel.frequencies(), backend=backend,
                paths=channel.paths, pulse_taps=channel.taps, rolloff=channel.rolloff,
                symbol_time=1 / (channel.subcarriers * channel.subcarrier_spacing),
            )  # fmt: skip
        return CdlSource(
            bs, ue, channel.carrier, channel.direction, channel.frequencies(), channel.snapshots, channel.snapshot_interval,
            backend, models=channel.models, delay_spread=channel.delay_spread, bs_sector=self.bs.sector(),
            ue_sector=self.ue.sector(), random_los_phase=channel.random_los_phase, speed=channel.speed,
        )  # fmt: skip

    def channel_hash(self) -> str:
        """A name for everything that decides the channels (not the front end, the SNR or the sizes): 16 hex digits."""
        parts = self.model_dump(mode="json", include={"bs", "ue", "channel"})
        return digest([DRAWS, parts])

    def data_set(self, split: Split, *, count: int | None = None, seed: int | None = None) -> DataSet:
        """The samples of a split that are worth a file; size and seed are the scenario's where they are left out."""
        return DataSet(
            source=self.source(),
            channel_hash=self.channel_hash(),
            scenario=json.dumps(self.model_dump(mode="json"), sort_keys=True),
            split=split,
            seed=self.data.seed if seed is None else seed,
            count=getattr(self.data, split) if count is None else count,
        )


_PROBLEMS = 3
"""Of a file that are told at once."""
_SECTIONS: dict[str, type[_Section]] = {
    "bs": ArraySection, "ue": ArraySection, "cdl": CdlSection, "paths": PathSection, "frontend": FrontendSection,
    "data": DataSection,
}  # fmt: skip


def scenario_names() -> list[str]:
    """The shipped scenarios."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load_scenario(name: str | Path) -> Scenario:
    """A shipped scenario by name, or one from a TOML file by path; ValueError with file, key and value if it is bad."""
    path = Path(name)
    if path.suffix != ".toml" and path.name == str(name):
        path = _folder() / f"{name}.toml"
        if not path.is_file():
            known = ", ".join(scenario_names())
            raise ValueError(f"{name}: no such scenario; give one of {known} or the path of a .toml file")
    if not path.is_file():
        raise ValueError(f"{path}: no such scenario file")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return Scenario.model_validate({"name": path.stem, **content})
    except ValidationError as error:
        raise ValueError(f"{path}: {_one_line(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a TOML file: {printable(error)}") from None


def _one_line(error: ValidationError) -> str:
    """The first problems of a file in one line: key, what is wrong or allowed, what came."""
    problems, found = [], error.errors()
    for problem in found[:_PROBLEMS]:
        loc = [str(part) for part in problem["loc"]]
        section = _SECTIONS.get(loc[-2], Scenario) if len(loc) > 1 else Scenario
        if loc[:1] == ["channel"]:
            del loc[1:2]  # the kind of channel, by which the section was chosen, is no key
        key = printable(".".join(loc), 60)
        value = f"{key} = {printable(repr(problem['input']), 60)}"
        match problem["type"]:
            case "extra_forbidden":
                problems.append(f"{value}: unknown key; allowed are {', '.join(sorted(section.model_fields))}")
            case "value_error":
                problems.append(printable(f"{key}: {problem['ctx']['error']}" if key else problem["ctx"]["error"]))
            case "missing":
                problems.append(f"{key}: missing")
            case _:
                problems.append(printable(f"{value}: {problem['msg'][0].lower()}{problem['msg'][1:]}"))
    more = [f"and {len(found) - _PROBLEMS} more"] if len(found) > _PROBLEMS else []
    return "; ".join([*problems, *more])


def _folder() -> Path:
    """Inside the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "scenarios", package.parent / "scenarios"):
        if folder.is_dir():
            return folder
    raise ValueError("the shipped scenarios were not found; reinstall the package")
