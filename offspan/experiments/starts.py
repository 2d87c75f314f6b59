"""One problem, many starts: how far apart are the controllers that policy gradient reaches?"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jax
import numpy as np
import pydantic
import xarray as xr

from offspan.errors import OffspanError, check_known
from offspan.experiments.estimate import Estimate, linear, one_after_another
from offspan.experiments.lqr import STATUS_FLAGS, restored
from offspan.experiments.registry import FAMILIES
from offspan.experiments.spec import Arrays, OnChunk, Positive, Rate, Spec, Task, result_attributes
from offspan.problems import LQR
from offspan.states import basis
from offspan.theory.regularized import largest_distance
from offspan.training import Batch, Status, train_lqr_batch


class StartsSpec(Spec):
    """One problem with R = control_cost · I, trained from many random controllers K(1): do they come together?"""

    kind: Literal["starts"]
    system: str
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
        check_known("there is no system", self.system, [name for name, family in FAMILIES.items() if not family.is_random])
        if self.seen > self.dim:
            raise OffspanError(f"`seen` asks for {self.seen} basis states, but `dim` is {self.dim}")
        return self

    def problem(self) -> LQR:
        system = FAMILIES[self.system].make(0, self.dim, self.horizon)
        return LQR(system.A, R=self.control_cost * np.eye(self.dim), horizon=self.horizon)

    def estimate(self) -> Estimate:
        runs, records = self.starts * len(self.seeds), -(-self.iterations // self.record_every) + 1
        trained = linear({self.seen: runs}, self.dim, self.dim, self.horizon, self.iterations, self.record_every)
        return one_after_another([trained], beside=24.0 * records * runs * self.dim**2)

    def content(self) -> str:
        return f"{self.system}, control cost {self.control_cost:g}"


SPEC = StartsSpec
MEASURED = {
    "largest_distance": "largest distance of two controllers, Frobenius norm",
    "median_norm": "median norm of the controllers",
    "relative_distance": "largest distance over the median norm",
}
VARIABLES = {"status": ("start",), "iterations": ("start",), **dict.fromkeys(("iteration", *MEASURED), ("iteration",))}
SETTINGS = ("dim", "horizon", "seen", "control_cost", "learning_rate", "start_std")
ATTRIBUTES = {"system": str, **dict.fromkeys(SETTINGS, float)}


def tasks(spec: StartsSpec) -> list[Task]:
    return [Task("starts", 1.0)]


def run_task(spec: StartsSpec, name: str, needed: Mapping[str, Arrays], resume: Arrays | None, on_chunk: OnChunk) -> Arrays:
    """K ← K − η ∇J(K; S) from every start at once: the batch, and `K` (q, r, m, n) after `recorded` (q,) updates, NaN where not yet made.

    A start that diverged failed at iteration `iterations[r]` and keeps its last finite K.
    """
    shape = spec.starts, spec.dim, spec.dim
    starts = np.concatenate([spec.start_std * np.asarray(jax.random.normal(jax.random.key(seed), shape)) for seed in spec.seeds])
    upto = np.unique(np.append(np.arange(0, spec.iterations, spec.record_every), spec.iterations))
    K = np.full((len(upto), *starts.shape), np.nan, spec.precision)
    K[0] = starts
    batch, K = (None, K) if resume is None else (restored(resume), resume["K"].copy())
    problems, seen = [spec.problem()] * len(starts), [np.asarray(basis(spec.dim, spec.seen))] * len(starts)
    options: dict[str, Any] = {"learning_rate": spec.learning_rate, "record_every": spec.record_every, "K0": starts}

    def keep(batch: Batch) -> None:
        K[upto == batch.done] = batch.K
        on_chunk(batch.done / spec.iterations, {**batch.to_arrays(), "K": K.copy()})

    for iterations in upto[1:].tolist():
        if batch is None or batch.done < iterations:
            batch = train_lqr_batch(problems, seen, iterations=iterations, resume=batch, on_chunk=keep, **options)
    assert batch is not None  # a spec has at least one iteration
    return {**batch.to_arrays(), "K": K}


def to_dataset(spec: StartsSpec, results: Mapping[str, Arrays]) -> xr.Dataset:
    """Distances are +∞ once a start has diverged."""
    state = results["starts"]
    K, codes, iterations, recorded = (state[name] for name in ("K", "codes", "iterations", "recorded"))
    ended = iterations[codes == Status.diverged].min(initial=spec.iterations + 1)
    distance = np.array([largest_distance(one) if done <= ended else np.inf for one, done in zip(K, recorded, strict=True)])
    with np.errstate(over="ignore"):  # the last finite controller of a start that diverged may have an infinite norm
        norm = np.median(np.linalg.norm(K, axis=(2, 3)), axis=1)
    relative = np.where(np.isfinite(distance), distance / np.where(np.isfinite(norm), norm, 1.0), np.inf)
    data: dict[str, tuple] = {
        "K": (("iteration", "start", "control", "state"), K),
        "status": ("start", codes, STATUS_FLAGS),
        "iterations": ("start", iterations, {"long_name": "updates made"}),
    }
    for (name, meaning), values in zip(MEASURED.items(), (distance, norm, relative), strict=True):
        data[name] = "iteration", values, {"long_name": meaning}
    settings = {key: getattr(spec, key) for key in ATTRIBUTES}
    return xr.Dataset(data, coords={"iteration": recorded}, attrs={**result_attributes(spec), **settings})
