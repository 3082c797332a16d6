"""What Sionna drew for users of a cell, and the parts of their two strongest clusters."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

_SUBCLUSTERS = ((0, 1, 2, 3, 4, 5, 6, 7, 18, 19), (8, 9, 10, 11, 16, 17), (12, 13, 14, 15))
_OFFSETS = (0.0, 1.28, 2.56)
"""Table 7.5-5: the rays of the parts of a strong cluster, and their delays in units of the cluster delay spread."""


@dataclass(frozen=True)
class Drop:
    """Links to users as Sionna drew them, from the base station to the user, turned to azimuth zero. Float64."""

    delays: Tensor
    """Seconds: [batch, clusters]."""
    powers: Tensor
    """Of the diffuse clusters, one in all but for those too weak to be kept: [batch, clusters]."""
    angles: Tensor
    """Azimuth and zenith at the user, azimuth and zenith at the base station: [4, batch, clusters, rays]."""
    xpr: Tensor
    """[batch, clusters, rays]."""
    k_factor: Tensor
    """Zero without a line of sight: [batch]."""
    los_angles: Tensor
    """As `angles`: [4, batch]."""
    distance: Tensor
    """Metres: [batch]."""
    gain: Tensor
    """Path loss and shadowing, linear in power: [batch]."""
    strongest: Tensor
    """The two clusters that have parts: [batch, 2]."""
    cluster_spread: Tensor
    """Delay spread of those, seconds: [batch]."""

    def select(self, index: Tensor) -> "Drop":
        """Chosen links. index: [k]."""
        return Drop(
            *(
                getattr(self, each.name)[:, index] if "angles" in each.name else getattr(self, each.name)[index]
                for each in fields(self)
            )
        )


def with_parts(drop: Drop) -> tuple[Drop, Tensor]:
    """The two strongest clusters parted into three each, as clause 7.5, step 11, has it, in order of delay.

    -> the drop with four clusters more, and what the power of each ray is multiplied by, [batch, clusters, rays]: a part
    has some of the rays of its cluster, and `Rays` gives each ray of a cluster the same share.
    """
    batch, clusters, rays = drop.xpr.shape
    own = torch.arange(clusters).expand(batch, -1)
    parent = torch.cat([own, drop.strongest, drop.strongest], 1)
    part = torch.full((batch, clusters + 4), -1)
    part.scatter_(1, drop.strongest, 0)
    part[:, clusters:] = torch.tensor([1, 1, 2, 2])
    weight = torch.ones(4, rays, dtype=drop.powers.dtype)
    for k, members in enumerate(_SUBCLUSTERS):
        weight[k] = torch.zeros(rays).scatter(0, torch.tensor(members), 1.0)
    held = weight.mean(1)  # row 3, reached as -1, is a whole cluster
    offset = torch.tensor([*_OFFSETS, 0.0], dtype=drop.delays.dtype)
    delays = drop.delays.gather(1, parent) + offset[part] * drop.cluster_spread[:, None]
    order = torch.argsort(delays, dim=1, stable=True)
    parent, part = parent.gather(1, order), part.gather(1, order)
    each = parent[..., None].expand(-1, -1, rays)
    parted = replace(
        drop,
        delays=delays.gather(1, order),
        powers=drop.powers.gather(1, parent) * held[part],
        angles=torch.stack([angle.gather(1, each) for angle in drop.angles]),
        xpr=drop.xpr.gather(1, each),
    )
    return parted, (weight / held[:, None])[part]
