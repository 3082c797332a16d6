"""What a block is: training, data, modulation and code. No Sionna here."""

from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict

from chanest.bounds.genie import GenieAngles
from chanest.pilots import Pilots
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario
from vlista_core.problems import check_count

ErrVar = Literal["estimated", "zero"]
"""What the equaliser is told of the estimate's errors: their variance, or that there are none."""
Precoding = Literal["trained", "hybrid"]
"""Beams of the data of a flat link: the last of the training, or chosen from the estimate."""
MODULATIONS = {"qpsk": 2, "16qam": 4, "64qam": 6, "256qam": 8}
"""Name -> bits per symbol."""
REFERENCES = {
    "sionna-ls": "Sionna LS",
    "sionna-linear": "Sionna LS, linear",
    "sionna-lmmse": "Sionna LMMSE",
    "perfect": "perfect CSI",
    GenieAngles.name: GenieAngles.label,
}
"""Receivers that are not of our registry -> how tables call them. The last two know what no receiver can."""
SLOTS_ONLY = ("sionna-linear",)
"""Those that interpolate over a slot, which a flat block has no need of."""
TRAINED_ONLY = ("sionna-ls", "sionna-lmmse")
"""Those that know of a flat channel what the trained beams see, and so cannot choose others."""
BOUNDS = ("perfect", GenieAngles.name)
_CODE_BITS = (12, 8448)
_CODE_RATES = (0.2, 0.9)


class LinkSetup(BaseModel):
    """A block is one channel, flat and constant: the scenario's T training symbols, one beam each, then `data_symbols`
    symbols through the last `streams` beams, `subcarriers` wide, with one codeword of the 5G LDPC code over all of it.
    With precoding = "hybrid" the data go through beams that are chosen from the estimate (`chanest.link.precoding`).

    Where a sample of the scenario is a slot of several snapshots, a block is that slot: pilots where its pattern has them,
    and data of all transmit antennas, each a stream, everywhere else; `streams`, `data_symbols` and `subcarriers` say nothing.
    Every user of it has a codeword of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenario: Scenario
    modulation: str = "16qam"
    rate: float = 0.5
    streams: int = 2
    data_symbols: int = 24
    subcarriers: int = 2
    precoding: Precoding = "trained"

    def check_blocks(self) -> None:
        """ValueError where there can be no such blocks."""
        for name in ("streams", "data_symbols", "subcarriers"):
            check_count(name, getattr(self, name))
        if self.modulation not in MODULATIONS:
            raise ValueError(f"modulation must be one of {', '.join(MODULATIONS)}, got {self.modulation!r}")
        if not _CODE_RATES[0] <= self.rate <= _CODE_RATES[1]:
            raise ValueError(f"rate must be a code rate from {_CODE_RATES[0]} to {_CODE_RATES[1]}, got {self.rate}")
        if not _CODE_BITS[0] <= self.information_bits <= _CODE_BITS[1]:
            raise ValueError(
                f"a codeword must hold {_CODE_BITS[0]} to {_CODE_BITS[1]} information bits, these blocks make it "
                f"{self.information_bits}: change data_symbols or subcarriers"
            )
        problem, frontend, name = ChannelProblem(self.scenario), self.scenario.frontend, self.scenario.name
        if self.precoding == "hybrid" and (self.over_slots or frontend.chains):
            held = f"{problem.snapshots} snapshots" if self.over_slots else f"chains = {frontend.chains}"
            raise ValueError(
                f"precoding must be trained for slots and for receivers with RF chains, got hybrid; {name} has {held}"
            )
        if self.over_slots:
            if not frontend.antennas_send(problem.arrays[1].ports) or frontend.chains:
                raise ValueError(
                    "a link over slots is for streams that are antennas and a digital receiver: frontend.beams = 'identity', "
                    f"as many pilots as antennas in each position, chains = 0; {name} has beams = {frontend.beams!r}, "
                    f"pilots = {frontend.pilots}, chains = {frontend.chains}"
                )
            return
        if problem.subcarriers > 1:
            own = f"{name} has {problem.subcarriers} subcarriers of its own and one snapshot"
            raise ValueError(
                f"the link is for narrowband scenarios, whose channel is flat over a block, and for slots; {own}"
            )
        most = min(frontend.chains or problem.arrays[0].ports, frontend.pilots)
        if self.streams > most:
            why = f"what the receiver's chains and the {frontend.pilots} training beams of {name} allow"
            raise ValueError(f"streams must be at most {most}, {why}, got {self.streams}")

    @property
    def bits_per_symbol(self) -> int:
        return MODULATIONS[self.modulation]

    @property
    def over_slots(self) -> bool:
        """Whether a block is a slot whose channel changes over time and frequency."""
        return self.scenario.frontend.snapshots > 1

    @cached_property
    def layout(self) -> Pilots:
        """The pilots of a slot."""
        found = self.scenario.frontend.layout(ChannelProblem(self.scenario).subcarriers)
        assert found is not None
        return found

    @property
    def sent_streams(self) -> int:
        """Streams of data."""
        return self.layout.streams if self.over_slots else self.streams

    @property
    def codewords(self) -> int:
        """Of a block, one of each user."""
        return self.scenario.frontend.users

    @property
    def coded_bits(self) -> int:
        """n, of a codeword."""
        if self.over_slots:
            streams = self.layout.streams // self.codewords
            return streams * int((~self.layout.reserved).sum()) * self.bits_per_symbol
        return self.streams * self.data_symbols * self.subcarriers * self.bits_per_symbol

    @property
    def information_bits(self) -> int:
        """k, of a codeword."""
        return round(self.coded_bits * self.rate)

    @property
    def resource_elements(self) -> int:
        """Of a block, training included."""
        if self.over_slots:
            return self.layout.reserved.numel()
        return (self.scenario.frontend.pilots + self.data_symbols) * self.subcarriers

    @property
    def peak_efficiency(self) -> float:
        """Information bits per resource element where no block is lost."""
        return self.codewords * self.information_bits / self.resource_elements

    @property
    def code(self) -> str:
        """Modulation, rate and streams for people."""
        streams = self.sent_streams
        return f"{self.modulation}, code rate {self.rate:g}, {streams} stream{'s' if streams > 1 else ''}"
