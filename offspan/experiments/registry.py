"""What an experiment can name: systems, kinds of experiments, and presets. Each is registered by one entry here."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from offspan.problems import LQR, Pendulum, Problem, Quadcopter, gaussian, gaussian_abq, identity, shift


class Family(NamedTuple):
    """A family of LQRs, made by `make(seed, dim, horizon)`; where it is not random, the seed makes no difference."""

    make: Callable[[int, int, int], LQR]
    is_random: bool = False


class Coordinate(NamedTuple):
    """One number of a state, as axes and tables call it."""

    name: str
    unit: str

    @property
    def label(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name


class System(NamedTuple):
    """A non-linear system, made by `make(**settings)`. `position` are the coordinates that tell initial states apart in figures, `mapped`
    those over which a map is drawn; `scene` is the picture of a state (`report.scenes.SCENES`)."""

    make: Callable[..., Problem]
    coordinates: tuple[Coordinate, ...]
    position: tuple[int, ...] = (0, 1)
    mapped: tuple[int, int] = (0, 1)
    scene: str = "plane"

    @property
    def names(self) -> list[str]:
        return [coordinate.name for coordinate in self.coordinates]


FAMILIES: dict[str, Family] = {
    "identity": Family(lambda seed, dim, horizon: identity(dim, horizon=horizon)),
    "shift": Family(lambda seed, dim, horizon: shift(dim, horizon=horizon)),
    "gaussian": Family(lambda seed, dim, horizon: gaussian(jax.random.key(seed), dim, horizon=horizon), is_random=True),
    "gaussian-abq": Family(lambda seed, dim, horizon: gaussian_abq(jax.random.key(seed), dim, horizon=horizon), is_random=True),
}
_ROOM = [(name, "m") for name in "xyz"] + [(name, "rad") for name in "φθψ"]
SYSTEMS: dict[str, System] = {
    "pendulum": System(Pendulum, (Coordinate("θ", "rad"), Coordinate("dθ/dt", "rad/s")), position=(0,), scene="pendulum"),
    "quadcopter": System(
        Quadcopter,
        (*(Coordinate(*one) for one in _ROOM), *(Coordinate(f"d{name}/dt", f"{unit}/s") for name, unit in _ROOM)),
        position=(0, 1, 2),
        mapped=(0, 2),
        scene="room",
    ),
}
