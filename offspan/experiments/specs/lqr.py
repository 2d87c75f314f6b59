"""The specs of linear controllers: a sweep, and one problem from many starts."""

import itertools
from collections.abc import Callable
from typing import Annotated, Literal

import jax
import numpy as np
import pydantic

from offspan.errors import OffspanError, nearest
from offspan.experiments.specs.base import Matrix, Positive, Rate, Spec, Strict, distinct
from offspan.problems import LQR, gaussian, gaussian_abq, identity, shift

FAMILIES: dict[str, Callable[..., LQR]] = {
    "identity": lambda seed, dim, horizon: identity(dim, horizon=horizon),
    "shift": lambda seed, dim, horizon: shift(dim, horizon=horizon),
    "gaussian": lambda seed, dim, horizon: gaussian(jax.random.key(seed), dim, horizon=horizon),
    "gaussian-abq": lambda seed, dim, horizon: gaussian_abq(jax.random.key(seed), dim, horizon=horizon),
}
RANDOM = {"gaussian", "gaussian-abq"}


class Matrices(Strict):
    """A system of one's own: x' = A x + B u with cost xᵀQx + uᵀRu; B and Q default to I, R to 0."""

    A: Matrix
    B: Matrix | None = None
    Q: Matrix | None = None
    R: Matrix | None = None


class LQRSpec(Spec):
    """A sweep of linear controllers: every combination of the lists below is a run, trained on e_1..e_n or on `seen_states`."""

    kind: Literal["lqr"] = "lqr"
    systems: list[str] = pydantic.Field(min_length=1)
    dim: list[Positive] = pydantic.Field(min_length=1)
    horizon: list[Positive] = pydantic.Field(min_length=1)
    seen: Annotated[list[Positive], pydantic.Field(min_length=1)] | None = None
    seen_states: Matrix | None = None
    learning_rate: list[Rate] = pydantic.Field(min_length=1)
    record_every: Positive = pydantic.Field(100, le=1000)
    compare_with: str | None = None
    matrices: dict[str, Matrices] = pydantic.Field({})

    @pydantic.field_validator("systems", "dim", "horizon", "seen", "seeds", "learning_rate")
    @classmethod
    def _each_once(cls, values):
        return distinct(values)

    @pydantic.model_validator(mode="after")
    def _fits_together(self):
        for system in self.systems:
            if system not in FAMILIES and system not in self.matrices:
                known = [*FAMILIES, *self.matrices]
                raise OffspanError(f"system {system!r} is unknown{nearest(system, known)}; there are {', '.join(known)}")
        if taken := set(self.matrices) & set(FAMILIES):
            raise OffspanError(f"[matrices.{min(taken)}] has the name of a family of systems; give it another")
        if unused := set(self.matrices) - set(self.systems):
            raise OffspanError(f"[matrices.{min(unused)}] is not named in `systems`")
        if (self.seen is None) == (self.seen_states is None):
            raise OffspanError("give either `seen`, numbers of basis states, or `seen_states`, a list of states")
        if self.seen is not None and max(self.seen) > min(self.dim):
            raise OffspanError(f"`seen` asks for {max(self.seen)} basis states, but `dim` goes down to {min(self.dim)}")
        if self.seen_states is not None and {len(x) for x in self.seen_states} != set(self.dim):
            raise OffspanError(f"`seen_states` must be states of length `dim`, which is {self.dim}")
        for name, own in self.matrices.items():
            if [len(own.A)] != self.dim:
                raise OffspanError(f"[matrices.{name}] has {len(own.A)} states, but `dim` is {self.dim}")
        # LQR says what is wrong with a matrix.
        controls = {self.problem(system, 0, self.dim[0], self.horizon[0]).control_dim for system in self.matrices}
        if len(controls | ({self.dim[0]} if set(self.systems) - set(self.matrices) else set())) > 1:
            raise OffspanError("the systems have different numbers of controls; give each its own spec")
        return self

    def problem(self, system: str, seed: int, dim: int, horizon: int) -> LQR:
        if system in self.matrices:
            own = self.matrices[system]
            return LQR(own.A, own.B, own.Q, own.R, horizon=horizon)
        return FAMILIES[system](seed, dim, horizon)

    def depends_on_seed(self, system: str) -> bool:
        return system in RANDOM

    def shapes(self) -> list[tuple[int, int]]:
        """(dim, horizon): each is trained in a batch of its own."""
        return list(itertools.product(self.dim, self.horizon))

    def part_weights(self) -> list[float]:
        return [float(dim**2 * horizon) for dim, horizon in self.shapes()]

    def content(self) -> str:
        return ", ".join(self.systems)


class StartsSpec(Spec):
    """One problem with R = control_cost · I, trained from many random controllers K(1): do they come together?"""

    kind: Literal["starts"]
    system: Literal["identity", "shift"]
    dim: Positive
    horizon: Positive
    seen: Positive = 1
    control_cost: Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)] = 1.0
    starts: Annotated[int, pydantic.Field(strict=True, ge=2, lt=10**6)]
    start_std: Rate
    learning_rate: Rate
    record_every: Positive = 1000

    @pydantic.model_validator(mode="after")
    def _fits_together(self):
        if self.seen > self.dim:
            raise OffspanError(f"`seen` asks for {self.seen} basis states, but `dim` is {self.dim}")
        return self

    def problem(self) -> LQR:
        system = FAMILIES[self.system](0, self.dim, self.horizon)
        return LQR(system.A, R=self.control_cost * np.eye(self.dim), horizon=self.horizon)

    def content(self) -> str:
        return f"{self.system}, control cost {self.control_cost:g}"
