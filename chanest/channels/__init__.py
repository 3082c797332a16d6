"""Channel sources: clustered delay lines, plain paths, and files of stored channels."""

from chanest.arrays import Sector
from chanest.channels.cdl import CdlSource
from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource

__all__ = ["CdlSource", "ChannelSource", "Rays", "Sector"]
