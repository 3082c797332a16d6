"""A scenario file: arrays, channel, front end, SNR range and data-set sizes, checked when read."""

import json
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import (
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from chanest.channels.cdl import CdlSection
from chanest.channels.clusters import ClusterSection
from chanest.channels.file import FileSection
from chanest.channels.paths import PathSection
from chanest.channels.rt import RtSection
from chanest.channels.scm import ScmSection
from chanest.channels.section import DELAY_KEYS, ArraySection, Section, scenario_folder
from chanest.channels.source import DRAWS, Backend, ChannelSource
from chanest.channels.store import DataSet
from chanest.channels.system_level import SystemLevelSection
from chanest.frontend.section import AnyPattern, CombSection, layout
from chanest.pilots import CODEBOOKS, BeamKind, Pilots
from vlista_core.draws import Split
from vlista_core.files import digest
from vlista_core.validation import printable

__all__ = [
    "ArraySection", "CdlSection", "ClusterSection", "DataSection", "FileSection", "FrontendSection", "PathSection",
    "RtSection", "Scenario", "ScmSection", "SystemLevelSection", "as_scenario", "load_scenario", "scenario_names",
]  # fmt: skip

AnyChannel = (
    CdlSection
    | PathSection
    | ClusterSection
    | ScmSection
    | FileSection
    | SystemLevelSection
    | RtSection
)  # fmt: skip
"""The registry of kinds of channels."""


class FrontendSection(Section):
    """Training: pilots of one transmit beam each, and a receiver of `chains` RF chains (0: fully digital)."""

    pilots: int = Field(ge=1, le=2**20)
    """How many, each through a transmit beam of its own."""
    beams: BeamKind = "quantised"
    """Of the transmitter: phases (any), quantised (2^bits of them), dft (columns of the codebook), gaussian, identity
    (one antenna at a time)."""
    bits: int = Field(default=2, ge=1, le=16)
    """Of a quantised phase shifter."""
    chains: int = Field(default=0, ge=0)
    """RF chains of the receiver, each with a combiner; 0 is a receiver that sees every antenna."""
    combiners: BeamKind = "quantised"
    """Of the receiver, where it has chains: as beams."""
    whiten: bool = True
    """Whether the noise that combiners colour is made white again."""
    pattern: Annotated[AnyPattern, Field(discriminator="kind")] | None = None
    """Where pilots are; none sends every beam on every subcarrier, while the channel stays."""
    snapshots: int = Field(default=1, ge=1, le=2**10)
    """Of the channel in one sample, among which the symbols of the pattern are divided; 1 for a channel that stays."""
    users: int = Field(default=1, ge=1, le=2**8)
    """Transmitters of one sample, each a user of its own; their antennas are stacked."""

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keys of a grid only where there is one, so that files of flat front ends stay those of earlier versions."""
        content: dict[str, Any] = written(self)
        if self.pattern is None:
            del content["pattern"], content["snapshots"]
        if self.users == 1:
            del content["users"]
        return content

    @property
    def positions(self) -> int:
        """How many times beams and combiners are set."""
        return self.pilots if self.pattern is None else self.pattern.positions(self.pilots)

    def antennas_send(self, antennas: int) -> bool:
        """Whether the streams of the pattern are the `antennas` of every user, all of them in every position."""
        everyones = self.positions * self.users * antennas
        return self.pattern is not None and self.beams == "identity" and self.pilots == everyones

    def layout(self, subcarriers: int) -> Pilots | None:
        """What is sent on the grid of one sample; None where every beam serves every subcarrier."""
        return None if self.pattern is None else layout(self.pattern, self.pilots, subcarriers).with_users(self.users)

    def with_pilots(self, count: int, antennas: int) -> Self:
        """The same with another number of pilots, at most as many as there are beams of a codebook of `antennas`.

        A pattern whose symbols are given has its number of pilots, and stays.
        """
        if self.pattern is not None and not (isinstance(self.pattern, CombSection) and self.pattern.symbols is None):
            return self
        most = [count, *([antennas] if self.beams in CODEBOOKS else [])]
        if isinstance(self.pattern, CombSection) and self.pattern.slot is not None:
            most.append(self.pattern.slot)
        return self.model_copy(update={"pilots": min(most)})


class DataSection(Section):
    """Sizes of the stored splits and the seed of all of them."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of stored channels and of plots."""
    train: int = Field(default=50_000, ge=1, le=2**30)
    """Channels of the training split."""
    validation: int = Field(default=2_000, ge=1, le=2**30)
    """Channels of the validation split."""
    test: int = Field(default=2_000, ge=1, le=2**30)
    """Channels of the test split."""


class Scenario(Section):
    """A named set-up."""

    name: str = Field(min_length=1)
    """That of the file unless said."""
    description: str = ""
    """A few words for lists."""
    bs: ArraySection
    """The base station's array."""
    ue: ArraySection
    """The user's array."""
    channel: AnyChannel = Field(default=CdlSection(), discriminator="kind")
    """The kind of channels and their keys; cdl unless said."""
    frontend: FrontendSection
    """Pilots, beams and combiners."""
    snr_db: tuple[float, float] = Field(default=(-10.0, 30.0), strict=False)
    """[lowest, highest] SNR in dB of training draws."""
    data: DataSection = DataSection()
    """Sizes and seed of stored channels."""

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
        front = self.frontend
        if front.beams in CODEBOOKS and pilots > source.tx.ports and not front.antennas_send(source.tx.ports):
            allowed = f"at most {source.tx.ports}, the size of the {CODEBOOKS[self.frontend.beams]}"
            raise ValueError(f"frontend.pilots must be {allowed}, got {pilots}")
        self._check_users(source)
        self._check_grid(source)
        return self

    def _check_users(self, source: ChannelSource) -> None:
        """ValueError where several users cannot be told apart."""
        users, front = self.frontend.users, self.frontend
        if users == 1:
            return
        if source.direction != "uplink":
            raise ValueError(f"frontend.users must be 1 unless channel.direction = 'uplink', got {users}")
        if not front.antennas_send(source.tx.ports) or front.snapshots == 1:
            raise ValueError(
                f"frontend.users = {users} needs slots whose streams are antennas: frontend.snapshots above 1, beams = "
                f"'identity' and {front.positions * users * source.tx.ports} pilots, got snapshots = {front.snapshots}, "
                f"beams = {front.beams!r} and pilots = {front.pilots}"
            )

    def _check_grid(self, source: ChannelSource) -> None:
        """ValueError where pilots do not fit the grid, or the grid does not fit the snapshots of the channel."""
        front, snapshots = self.frontend, self.frontend.snapshots
        try:
            pilots = front.layout(len(source.frequencies or (0.0,)))
            if pilots is not None:
                pilots.tiles(snapshots)
        except ValueError as fault:
            raise ValueError(f"frontend.pattern: {fault}") from None
        if snapshots > 1 and pilots is None:
            raise ValueError(f"frontend.snapshots must be 1 without frontend.pattern, got {snapshots}")
        if snapshots not in (1, source.snapshots):
            raise ValueError(f"frontend.snapshots must be 1 or channel.snapshots = {source.snapshots}, got {snapshots}")

    @cached_property
    def given_as(self) -> str | None:
        """What stands for it on a command line: the path it was read from or its shipped name; None where there is neither."""
        return self.name if self.name in scenario_names() else None

    def source(self, backend: Backend = "factored") -> ChannelSource:
        """The distribution of channels."""
        return self.channel.source(self.bs, self.ue, backend)

    def channel_hash(self) -> str:
        """A name for everything that decides the channels (not the front end, the SNR or the sizes): 16 hex digits."""
        ends = self.model_dump(mode="json", include={"bs", "ue"})
        return digest([DRAWS, {**ends, "channel": self.channel.identity(self.bs, self.ue)}])

    def directions_hash(self) -> str:
        """A name for everything that decides the directions of channels and not their delays: 16 hex digits.

        Weights for one subcarrier of a scenario serve every scenario with the same.
        """
        ends, identity = self.model_dump(mode="json", include={"bs", "ue"}), self.channel.identity(self.bs, self.ue)
        return digest(
            [DRAWS, {**ends, "channel": {key: value for key, value in identity.items() if key not in DELAY_KEYS}}]
        )

    def on_one_subcarrier(self) -> Self:
        """The same with a single subcarrier, the carrier."""
        return self.model_copy(update={"channel": self.channel.model_copy(update={"subcarriers": 1})})

    def data_set(self, split: Split, *, count: int | None = None, seed: int | None = None) -> DataSet:
        """The samples of a split that are worth a file; size and seed are the scenario's where they are left out."""
        return DataSet(
            source=self.source(),
            channel_hash=self.channel_hash(),
            scenario=json.dumps(self.model_dump(mode="json"), sort_keys=True),
            split=split,
            seed=self.data.seed if seed is None else seed,
            count=getattr(self.data, split) * self.frontend.snapshots * self.frontend.users if count is None else count,
        )


def settings_of(scenario: Scenario) -> Iterator[tuple[str, str, str]]:
    """(key, value, what it means) of everything a scenario sets, defaults included; values as a file has them."""
    yield from _settings("", scenario)


def _settings(prefix: str, section: BaseModel) -> Iterator[tuple[str, str, str]]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _settings(f"{prefix}{name}.", value)
        elif not (prefix == "" and name in ("name", "description")) and value is not None:
            yield f"{prefix}{name}", _as_written(value), " ".join((field.description or "").split())


def _as_written(value: object) -> str:
    """A value as TOML has it, long numbers with exponents."""
    match value:
        case float() if value and not 1e-3 <= abs(value) < 1e6:
            return f"{value:g}"
        case tuple():
            return f"[{', '.join(map(_as_written, value))}]"
        case _:
            return json.dumps(value)


_PROBLEMS = 3
"""Of a file that are told at once."""
_SECTIONS: dict[str, type[Section]] = {
    "bs": ArraySection, "ue": ArraySection, "frontend": FrontendSection, "data": DataSection,
    **{kind: section for section in get_args(AnyChannel) for kind in get_args(section.model_fields["kind"].annotation)},
    **{kind: section for section in get_args(AnyPattern) for kind in get_args(section.model_fields["kind"].annotation)},
}  # fmt: skip


def scenario_names() -> list[str]:
    """The shipped scenarios."""
    return sorted(path.stem for path in scenario_folder().glob("*.toml"))


def as_scenario(given: object) -> Scenario:
    """A scenario as it is, or the one of a shipped name or of a file; a ValueError for anything else."""
    match given:
        case Scenario():
            return given
        case str() | Path():
            return load_scenario(given)
        case _:
            allowed = "a Scenario, the name of a shipped one or the path of a .toml file"
            raise ValueError(f"scenario must be {allowed}, got {type(given).__name__}")


def load_scenario(name: str | Path) -> Scenario:
    """A shipped scenario by name, or one from a TOML file by path; ValueError with file, key and value if it is bad."""
    given: object = name
    if not isinstance(given, str | Path):
        return as_scenario(given)
    path = Path(name)
    if path.suffix != ".toml" and path.name == str(name):
        path = scenario_folder() / f"{name}.toml"
        if not path.is_file():
            near, known = get_close_matches(str(name), scenario_names(), n=3), ", ".join(scenario_names())
            meant = f"did you mean {' or '.join(near)}? Known are" if near else "give one of"
            raise ValueError(f"{printable(name)}: no such scenario; {meant} {known}, or the path of a .toml file")
    if not path.is_file():
        raise ValueError(f"{path}: no such scenario file")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        found = Scenario.model_validate({"name": path.stem, **_from_here(content, path.parent)})
    except ValidationError as error:
        raise ValueError(f"{path}: {_one_line(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a TOML file: {printable(error)}") from None
    vars(found)["given_as"] = str(name)  # fields are what tells scenarios apart
    return found


def _from_here(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a file says, with the path of own channels counted from its folder; shipped ones are found without."""
    match content:
        case {"channel": {"kind": "file", "path": str(path)} as channel} if folder != scenario_folder():
            return {**content, "channel": {**channel, "path": str(folder / path)}}
        case _:
            return content


def _one_line(error: ValidationError) -> str:
    """The first problems of a file in one line: key, what is wrong or allowed, what came."""
    problems, found = [], error.errors()
    listed: set[type[Section]] = set()
    for problem in found[:_PROBLEMS]:
        loc = [str(part) for part in problem["loc"]]
        section = _SECTIONS.get(loc[-2], Scenario) if len(loc) > 1 else Scenario
        if loc[:1] == ["channel"]:
            del loc[1:2]  # the kind of channel, by which the section was chosen, is no key
        if loc[:2] == ["frontend", "pattern"]:
            del loc[2:3]
        key = printable(".".join(loc), 60)
        value = f"{key} = {printable(repr(problem['input']), 60)}"
        match problem["type"]:
            case "extra_forbidden":
                allowed = "" if section in listed else f"; allowed are {', '.join(sorted(section.model_fields))}"
                listed.add(section)
                problems.append(f"{value}: unknown key{allowed}")
            case "value_error":
                problems.append(printable(f"{key}: {problem['ctx']['error']}" if key else problem["ctx"]["error"]))
            case "missing":
                problems.append(f"{key}: missing")
            case _:
                problems.append(printable(f"{value}: {problem['msg'][0].lower()}{problem['msg'][1:]}"))
    more = [f"and {len(found) - _PROBLEMS} more"] if len(found) > _PROBLEMS else []
    return "; ".join([*problems, *more])
