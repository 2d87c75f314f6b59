"""Our numbers beside the paper's: what [R24] says of each of its experiments, and whether our results agree."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from offspan.experiments.registry import load_preset
from offspan.report.lqr import MEASURES, summary
from offspan.report.network import measure_text, paper_number
from offspan.report.results import DIVERGED, quartiles
from offspan.report.starts import PAPER as DISTANCES
from offspan.report.tables import number

# "the median … was at most this much above the minimum"  [R24, app:experiments:details:lqr]
TRAINED_WITHIN = {"lqr": 1e-8, "lqr-long-horizon": 2e-5, "lqr-large": 2e-3, "lqr-random-abq": 0.02}
WORDS = {"identity": "identity system", "shift": "shift system", "gaussian": "gaussian (random A)", "gaussian-abq": "gaussian-abq"}


class Finding(NamedTuple):
    """A statement of the paper, the result here, and whether they agree."""

    what: str
    paper: str
    ours: str
    agrees: bool

    @property
    def verdict(self) -> str:
        return "agrees" if self.agrees else "differs"


def findings(preset: str | None, result: xr.Dataset, beside: xr.Dataset | None = None) -> list[Finding]:
    """For a result with the settings of a preset of the paper's; none where it has fewer iterations or seeds, as then it is another
    experiment."""
    if preset not in EXPERIMENTS:
        return []
    full = load_preset(preset)
    seeds = result.sizes.get("seed", len(full.seeds))
    if result.attrs["iterations"] < full.iterations or seeds < len(full.seeds):
        return []
    return list(EXPERIMENTS[preset].findings(preset, result, beside))


def _sweep(preset: str, result: xr.Dataset, beside: xr.Dataset | None) -> Iterator[Finding]:
    rows = summary(result)
    for system in rows.system.unique():
        medians, what = _medians(rows, system), f"{WORDS.get(system, system)}: both measures"
        if system == "identity":
            agrees = all(abs(value - 1) < 1e-9 for value in medians)
            yield Finding(what, "1, no extrapolation", _span(medians), agrees)
        else:
            yield Finding(what, "below 1, extrapolation", _span(medians), all(one < 1 for one in medians))
    within, largest = TRAINED_WITHIN[preset], max(rows.excess_training_cost)
    yield Finding("largest median of J(S) − J*(S)", f"at most {within:g}", number(largest, ".1e"), largest <= within)


def _longer(preset: str, result: xr.Dataset, beside: xr.Dataset | None) -> Iterator[Finding]:
    yield from _sweep(preset, result, beside)
    for system in ("shift", "gaussian"):
        yield from _lower(
            f"{WORDS[system]}: H = 8 against H = 5", "a longer horizon improves extrapolation", result, system, beside, system
        )


def _more_random(preset: str, result: xr.Dataset, beside: xr.Dataset | None) -> Iterator[Finding]:
    yield from _sweep(preset, result, beside)
    what, said = "gaussian-abq against gaussian", "significantly better extrapolation"
    yield from _lower(what, said, result, "gaussian-abq", beside, "gaussian")


def _lower(what: str, said: str, result: xr.Dataset, system: str, beside: xr.Dataset | None, other: str) -> Iterator[Finding]:
    """Whether all medians of a system are below those of another one in the paper's main experiment, where its result is given."""
    if beside is None or not findings("lqr", beside) or beside.seen.values.tolist() != result.seen.values.tolist():
        return
    pairs = list(zip(_medians(summary(result), system), _medians(summary(beside), other), strict=True))
    fell = sum(ours < theirs for ours, theirs in pairs)
    yield Finding(what, said, f"{fell} of {len(pairs)} medians are lower", fell == len(pairs))


def _horizons(preset: str, result: xr.Dataset, beside: xr.Dataset | None) -> Iterator[Finding]:
    rows = summary(result)
    rows = rows[(rows.system == "gaussian") & np.isclose(rows.learning_rate, 1e-3)]
    at = {H: (diverged, runs) for H, diverged, runs in zip(rows.horizon.tolist(), rows.diverged, rows.runs, strict=True)}
    said = ", ".join("{} of {} at H = {}".format(*at[H], H) for H in (8, max(at))) + " diverge"
    few, many = (diverged / runs for diverged, runs in (at[8], at[max(at)]))
    yield Finding("gaussian (random A), η = 1e-3", "training fails well past H = 8", said, few <= 0.1 and many >= 0.25)


def _distances(preset: str, result: xr.Dataset, beside: xr.Dataset | None) -> Iterator[Finding]:
    names = {"largest_distance": "largest distance of two controllers", "relative_distance": "… over their median norm"}
    for variable, what in names.items():
        ours = float(result[variable][-1])
        yield Finding(what, f"{DISTANCES[variable]:g}", f"{ours:.1e}", ours <= DISTANCES[variable])
    diverged = int((result.status == DIVERGED).sum())
    yield Finding("starts that reach it", "all", f"{result.sizes['start'] - diverged} of {result.sizes['start']}", diverged == 0)


def _network(preset: str, result: xr.Dataset, beside: xr.Dataset | None) -> Iterator[Finding]:
    low, median, high = quartiles(result.normalized_cost).values
    said, what = paper_number(result), f"normalised cost measure, median (quartiles) of {result.sizes['seed']} seeds"
    if said is None:
        yield Finding(what, "well below 1, extrapolation", measure_text(result), median < 0.5)
    else:
        yield Finding(what, f"{said:g}, of five seeds", measure_text(result), low <= said <= high or 0 <= median <= said)


def _pendulum(preset: str, result: xr.Dataset, beside: xr.Dataset | None) -> Iterator[Finding]:
    yield from _network(preset, result, beside)
    final = result.policy_gradient_unseen_trajectory.values[:, -1]
    shown = result.policy_gradient_status.sel(seed=int(result.shown_seed))
    largest = float(np.abs(final - result.target.values).max()) if shown != DIVERGED else np.inf
    yield Finding("unseen pendulums of the run shown end near (π, 0)", "within 0.05", f"within {largest:.2g}", largest <= 0.05)


def _further(preset: str, result: xr.Dataset, beside: xr.Dataset | None) -> Iterator[Finding]:
    yield from _network(preset, result, beside)
    apart = np.linalg.norm(result.unseen_state.values[:, None] - result.seen_state.values[None], axis=2).min(axis=1)
    costs = np.median(result.policy_gradient_unseen_cost.where(result.policy_gradient_status != DIVERGED, np.inf).values, axis=0)
    far = apart > np.median(apart)
    near_cost, far_cost = float(costs[~far].mean()), float(costs[far].mean())
    said = f"median J {near_cost:.2g} of the nearer half, {far_cost:.2g} of the further"
    yield Finding("unseen states further from the seen ones", "extrapolation decays", said, near_cost < far_cost < np.inf)


def _medians(rows: pd.DataFrame, system: str) -> list[float]:
    return rows.loc[rows.system == system, list(MEASURES)].to_numpy().ravel().tolist()


def _span(values: list[float]) -> str:
    low, high = number(min(values), ".3g"), number(max(values), ".3g")
    return f"medians {low}" if low == high else f"medians {low} to {high}"


class Experiment(NamedTuple):
    """The figure or section of the paper that an experiment is, its label there, and what the paper says of it."""

    number: str
    label: str
    findings: Callable[[str, xr.Dataset, xr.Dataset | None], Iterator[Finding]]


# By preset, in the order of the paper.
EXPERIMENTS = {
    "lqr": Experiment("Figure 2", "fig:lqr_experiments_main", _sweep),
    "lqr-long-horizon": Experiment("Figure 4", "fig:lqr_experiments_h8", _longer),
    "lqr-large": Experiment("Figure 5", "fig:lqr_experiments_d40", _sweep),
    "lqr-random-abq": Experiment("Figure 6", "fig:lqr_experiments_rnd_B_Q", _more_random),
    "lqr-horizon-sweep": Experiment("Figure 4, caption", "fig:lqr_experiments_h8", _horizons),
    "shift-regularized": Experiment("Appendix B", "app:determined_R_neq_zero", _distances),
    "pendulum": Experiment("Figure 3", "fig:pend_and_quad_experiments_main", _pendulum),
    "quadcopter-below": Experiment("Figure 3", "fig:pend_and_quad_experiments_main", _network),
    "quadcopter-further": Experiment("Figure 9", "fig:quad_experiments_add_unseen_initial_states", _further),
    "quadcopter-distance": Experiment("Figure 11", "fig:quad_experiments_dist", _network),
}
