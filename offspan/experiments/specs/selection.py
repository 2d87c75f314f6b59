"""The spec of a comparison of methods that choose initial states."""

import math
from typing import Literal

import numpy as np
import pydantic

from offspan.errors import OffspanError, nearest
from offspan.experiments.specs.base import Matrix, Positive, Rate, Spec, distinct, filled
from offspan.experiments.specs.lqr import FAMILIES
from offspan.experiments.specs.network import PROBLEMS, Networks, Objective, check_settings
from offspan.problems import Problem
from offspan.selection.methods import METHODS
from offspan.selection.select import check_pool


class SelectionSpec(Networks):
    """Methods of choosing initial states, compared: `choose` of the candidates by each method, against random sets, all trained to the end.

    For a family of LQRs a seed is a system, trained from K = 0; elsewhere it is a network to begin with. Candidates are e_1..e_dim for an
    LQR, unless they are given; states that are shorter than the problem's are filled up with zeros.
    """

    kind: Literal["selection"]
    problem: Literal["identity", "shift", "gaussian", "gaussian-abq", "pendulum", "quadcopter"]
    dim: Positive | None = None
    horizon: Positive | None = None
    candidates: Matrix | None = None
    scale: Rate = 1.0
    choose: Positive
    sets: Positive = 100  # random sets to compare with, or all there are
    methods: list[str] = pydantic.Field(min_length=1)
    policy_gradient: Objective
    pilot_sets: Positive = 32
    pilot_iterations: Positive  # of the longest pilot run
    looks: Positive = 20

    @pydantic.field_validator("methods", "seeds")
    @classmethod
    def _each_once(cls, values):
        return distinct(values)

    @pydantic.model_validator(mode="after")
    def _fits_together(self):
        known = [name for name in METHODS if name not in ("random", "exhaustive")]
        for name in self.methods:
            if name not in known:
                raise OffspanError(f"method {name!r} is not one to compare{nearest(name, known)}; there are {', '.join(known)}")
        if self.is_lqr():
            if self.dim is None or self.horizon is None or self.settings:
                raise OffspanError(f"`{self.problem}` needs `dim` and `horizon`, and has no [settings]")
        elif self.dim is not None or self.horizon is not None or self.candidates is None:
            raise OffspanError(f"a {self.problem} needs `candidates`, and has [settings] in place of `dim` and `horizon`")
        for key in ("iterations", "quick_iterations"):
            if (getattr(self, key) or 0) % self.looks:
                raise OffspanError(f"`{key}` is {getattr(self, key)}, but must be a multiple of `looks`, {self.looks}")
        if not self.is_lqr():
            check_settings(self.problem, self.settings)
        problem = self.make_problem(self.seeds[0])
        if self.candidates is not None and len(self.candidates[0]) > problem.state_dim:
            raise OffspanError(
                f"`candidates` has states of length {len(self.candidates[0])}, but the problem has {problem.state_dim} numbers"
            )
        pool = self.pool()
        check_pool("the comparison", problem, pool, self.choose)
        number = math.comb(len(pool), self.choose)
        if self.is_lqr() and number > self.sets:
            raise OffspanError(f"`sets` is {self.sets}, but all {number} sets of an LQR are trained; raise it")
        if "flow" in self.methods and (not self.is_lqr() or self.policy_gradient.optimizer != "gradient-descent"):
            raise OffspanError("the method 'flow' is for an LQR and gradient-descent; leave it out")
        return self

    def pool(self) -> np.ndarray:
        """The candidates (c, n)."""
        n = self.make_problem(self.seeds[0]).state_dim
        return filled(np.eye(n).tolist() if self.candidates is None else self.candidates, n, self.precision)

    def is_lqr(self) -> bool:
        return self.problem in FAMILIES

    def make_problem(self, seed: int) -> Problem:
        if self.is_lqr():
            return FAMILIES[self.problem](seed, self.dim, self.horizon)
        return PROBLEMS[self.problem](**self.settings)

    def as_quick(self) -> "Spec":
        """Also with fewer seeds, and for a network with fewer sets."""
        iterations = self.quick_iterations or max(self.iterations // 20 // self.looks, 1) * self.looks
        pilot = max(self.pilot_iterations * iterations // self.iterations, 1)
        fewer = {} if self.is_lqr() else {"sets": min(self.sets, 12), "pilot_sets": min(self.pilot_sets, 8)}
        seeds = self.seeds[: max(len(self.seeds) // 10, 3)]
        return self._variant("quick", iterations=iterations, pilot_iterations=pilot, seeds=seeds, quick=True, **fewer)

    def part_weights(self) -> list[float]:
        """Choosing, training all sets, and training on all candidates, by the states that an iteration rolls out."""
        count = len(self.pool())
        sets = min(self.sets, math.comb(count, self.choose))
        pilots = self.choose * self.pilot_sets * self.pilot_iterations / self.iterations / 4
        return [pilots, float(sets * self.choose), *([] if self.is_lqr() else [float(count)])]

    def content(self) -> str:
        return f"{self.problem}, {self.choose} of {len(self.pool())} states"
