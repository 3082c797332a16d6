"""Trace the paths of users with Sionna RT, in a process of its own.

Sionna RT compiles with LLVM, and an LLVM that does not fit ends the process, not the call. So the process that traces is
started by `trace`, which turns its end into one sentence; importing Mitsuba changes nothing in the process of the user.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pydantic import TypeAdapter
from torch import Tensor

from chanest.channels.traced import Site, TracedUsers
from vlista_core.draws import Split
from vlista_core.validation import printable

if TYPE_CHECKING:
    from sionna.rt import Scene

INSTALL = "install Sionna's ray tracer with: pip install 'vlista[rt]'"
LLVM = (
    "install LLVM 19 (Debian and Ubuntu: apt-get install libllvm19) and set DRJIT_LIBLLVM_PATH to the path of its "
    "libLLVM-19.so (Windows: LLVM-C.dll)"
)
BATCH = 200
"""Users traced at once."""
_LEAST_LLVM = 17
"""14 is refused by Dr.Jit, 15 and 16 end the process while paths are solved; 19 is what we test."""
_MOST_DRAWS = 200
"""Draws per user wanted, after which an area is held to be out of reach of its transmitters."""
_FAULT = "fault: "
_DONE = "done: "


def can_trace() -> bool:
    """Whether sionna-rt is installed. Nothing of it is imported."""
    return find_spec("sionna") is not None and find_spec("sionna.rt") is not None


def trace(
    site: Site, split: Split, users: int, path: Path, *, on_progress: Callable[[int], None] = lambda done: None
) -> None:
    """Trace the first `users` users of a split and write them to `path`; ValueError of one sentence if that cannot be.

    on_progress is told how many users are done.
    """
    what = f"tracing the scene {site.scene}"
    if not can_trace():
        raise ValueError(f"{what} needs sionna-rt, which is not installed; {INSTALL}")
    request = json.dumps({"site": site.as_json(), "split": split, "users": users, "path": str(path)})
    command = [sys.executable, "-m", "chanest.channels.tracing"]
    packages = str(Path(__file__).resolve().parents[2])
    searched = os.pathsep.join([packages, *filter(None, [os.environ.get("PYTHONPATH")])])
    fault, noise = "", [""]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env={**os.environ, "PYTHONPATH": searched},
    ) as child:  # fmt: skip
        if child.stdin is None or child.stdout is None:
            raise TypeError("the process that traces has no pipes")
        try:
            child.stdin.write(request)
            child.stdin.close()
            for line in child.stdout:
                if line.startswith(_DONE):
                    on_progress(int(line.removeprefix(_DONE)))
                elif line.startswith(_FAULT):
                    fault = line.removeprefix(_FAULT).strip()
                elif line.strip():
                    noise = [*noise[-20:], line.strip()]
        except BaseException:
            child.kill()
            raise
    if fault:
        raise ValueError(f"{what} failed: {fault}")
    if child.returncode:
        if child.returncode < 0 or any("LLVM" in line for line in noise):
            raise ValueError(f"{what} failed because the LLVM library found does not fit Sionna RT; {LLVM}")
        raise ValueError(f"{what} failed: {printable(noise[-1], 200)}")


def traced(
    site: Site, split: Split, users: int, *, on_progress: Callable[[int], None] = lambda done: None
) -> TracedUsers:
    """The first `users` users of a split, traced in this process."""
    scene, parts, done, start = _scene(site), [], 0, 0
    waiting: list[tuple[Tensor, int]] = []
    while done < users:
        if start > _MOST_DRAWS * max(users, BATCH) and done == 0:
            raise ValueError(
                f"no position in area = {list(site.area)} has {site.fewest_paths} paths; choose another area"
            )
        positions, transmitter, ours = site.candidates(range(start, start + BATCH), split)
        start += BATCH
        waiting += [(positions[k], int(transmitter[k])) for k in torch.nonzero(ours).flatten()]
        while len(waiting) >= BATCH and done < users:
            batch, waiting = waiting[:BATCH], waiting[BATCH:]
            found = _solve(site, scene, torch.stack([place for place, _ in batch]), torch.tensor([k for _, k in batch]))
            parts.append(found)
            done += len(found)
            on_progress(min(done, users))
    return TracedUsers.joined(parts).first(users)


def _scene(site: Site) -> "Scene":
    import sionna.rt as rt

    known = sorted(name for name in dir(rt.scene) if str(getattr(rt.scene, name)).endswith(".xml"))
    if site.scene not in known:
        raise ValueError(f"scene must be one of {', '.join(known)}, got {site.scene!r}")
    scene = rt.load_scene(getattr(rt.scene, site.scene))
    scene.frequency = site.carrier
    # Both ends are isotropic and upright, so that V and H are the global θ and φ components of the fields.
    array = rt.PlanarArray(
        num_rows=1, num_cols=1, vertical_spacing=0.5, horizontal_spacing=0.5, pattern="iso", polarization="VH"
    )
    scene.tx_array = scene.rx_array = array
    for k, place in enumerate(site.transmitters):
        scene.add(rt.Transmitter(f"transmitter {k}", position=list(place), orientation=[0.0, 0.0, 0.0]))
    return scene


def _solve(site: Site, scene: "Scene", positions: Tensor, transmitter: Tensor) -> TracedUsers:
    """Those of the users at `positions`, [k, 3], served by `transmitter`, [k], that have paths enough."""
    import sionna.rt as rt

    for k, place in enumerate(positions.tolist()):
        scene.add(rt.Receiver(f"user {k}", position=place, orientation=[0.0, 0.0, 0.0]))
    paths = rt.PathSolver(deterministic=True)(
        scene, max_depth=site.depth, samples_per_src=site.samples, synthetic_array=True, los=site.line_of_sight,
        specular_reflection=site.reflection, diffuse_reflection=site.scattering, refraction=site.refraction,
        diffraction=site.diffraction, seed=site.seed + 1,
    )  # fmt: skip
    for k in range(len(positions)):
        scene.remove(f"user {k}")
    user = torch.arange(len(positions))
    real, imaginary = (part.torch().float().cpu() for part in paths.a)
    if real.shape[-1] == 0:
        return _kept(site, positions, transmitter, *(torch.zeros(len(user), 0, *rest) for rest in ((), (4,), (2, 2))))
    matrices = torch.complex(real, imaginary)[user, :, transmitter].movedim(-1, 1)
    named = ("valid", "tau", "phi_r", "theta_r", "phi_t", "theta_t")
    valid, delays, *angles = (getattr(paths, name).torch().cpu()[user, transmitter] for name in named)
    return _kept(site, positions, transmitter, delays, torch.stack(angles, -1), matrices * valid[..., None, None])


def _kept(
    site: Site, positions: Tensor, transmitter: Tensor, delays: Tensor, angles: Tensor, matrices: Tensor
) -> TracedUsers:
    """The strongest paths in order of delay, powers adding up to one, of the users that have enough of them.

    delays: [users, paths], angles: [users, paths, 4], matrices: [users, paths, 2, 2], zero where there is no path.
    """
    power = matrices.abs().double().square().sum((2, 3)) / 2
    if power.shape[1] > site.most_paths:
        least = power.topk(site.most_paths, 1).values[:, -1:]
        power = torch.where(power >= least, power, torch.zeros_like(power))
    counts = (power > 0).sum(1)
    enough = counts >= site.fewest_paths
    order = torch.argsort(torch.where(power > 0, delays, torch.inf), dim=1, stable=True)[enough]
    power, counts = power[enough].gather(1, order), counts[enough]
    real, total = power > 0, power.sum(1)
    delays = delays[enough].gather(1, order)
    matrices = matrices[enough].gather(1, order[..., None, None].expand(-1, -1, 2, 2))
    return TracedUsers(
        positions=positions[enough],
        transmitter=transmitter[enough],
        counts=counts,
        gain=(10 * torch.log10(total)).float(),
        delays=(delays - delays[:, :1])[real],
        angles=angles[enough].gather(1, order[..., None].expand(-1, -1, 4))[real],
        matrices=(matrices / total.sqrt()[:, None, None, None]).to(torch.complex64)[real],
    )


def main() -> None:
    """Read a request from standard input, trace, write; tell progress and a fault on standard output."""

    def tell(what: str) -> None:
        sys.stdout.write(what + "\n")
        sys.stdout.flush()

    request = json.loads(sys.stdin.read())
    try:
        import drjit
        import sionna.rt  # noqa: F401
    except ImportError as fault:
        tell(
            _FAULT
            + (f"Dr.Jit found no LLVM that it can use; {LLVM}" if "LLVM" in str(fault) else f"{fault}; {INSTALL}")
        )
        sys.exit(1)
    if (version := drjit.detail.llvm_version())[0] < _LEAST_LLVM:
        tell(f"{_FAULT}LLVM {version[0]} was found, with which Sionna RT ends in a crash; {LLVM}")
        sys.exit(1)
    site = TypeAdapter(Site).validate_python(request["site"])
    try:
        users = traced(site, request["split"], request["users"], on_progress=lambda done: tell(f"{_DONE}{done}"))
        users.write(Path(request["path"]), site, request["split"])
    except ValueError as fault:
        tell(f"{_FAULT}{fault}")
        sys.exit(1)


if __name__ == "__main__":
    main()
