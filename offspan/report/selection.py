"""The report of a comparison of methods that choose initial states: outcomes against random sets, and what was known before training."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from offspan.report.results import DIVERGED
from offspan.report.tables import Sheet, number
from offspan.statistics import Estimate, bootstrap, cvar, rank_correlation, ratio

SHARES = (0.05, 0.1, 0.25)  # of training, at which it is asked how well the cost so far and the alignment tell the outcome
TAIL = 0.2
GOOD = 1.5  # times the least cost


class Outcome(NamedTuple):
    """What a method led to: J from each candidate, for each seed (seed, set, candidate), with one set a seed for all but random choice."""

    name: str
    costs: np.ndarray
    rollouts: float


def outcomes(result: xr.Dataset) -> list[Outcome]:
    """Random sets; each method's choice; what a method itself trained, where that was a training of full length; and the best set."""
    costs, choice = result.cost.values, result.choice.values
    seeds = np.arange(len(costs))
    is_random = result.is_random.values
    found = [Outcome("random", costs[:, is_random], 0.0)]
    for m, name in enumerate(result.method.values.tolist()):
        made = float(np.median(result.rollouts.values[:, m]))
        found.append(Outcome(name, costs[seeds, choice[:, m]][:, None], made))
        own = result.own_cost.values[:, m]
        if np.all(~np.isnan(own)) and result.attrs["pilot_iterations"] == result.attrs["iterations"]:
            found.append(Outcome(f"{name} (own run)", own[:, None], made))
    best = costs[seeds, costs.mean(axis=2).argmin(axis=1)]
    # All sets, trained and looked at.
    made = np.median(result.iterations.sum("set")) * result.sizes["seen"] + result.sizes["set"] * result.sizes["candidate"]
    return [*found, Outcome(best_name(result), best[:, None], float(made))]


def best_name(result: xr.Dataset) -> str:
    return "best set" if is_complete(result) else f"best of {result.sizes['set']} sets"


def is_complete(result: xr.Dataset) -> bool:
    """Whether every set there is was trained."""
    return result.sizes["set"] == math.comb(result.sizes["candidate"], result.sizes["seen"])


def is_lqr(result: xr.Dataset) -> bool:
    return "dim" in result.attrs


def measure(result: xr.Dataset, outcome: Outcome) -> np.ndarray:
    """(seed, set): J over all candidates; less the least there is, for an LQR, where that is known exactly (up to rounding, which is 0)."""
    J, least = outcome.costs.mean(axis=2), result.least_cost.values[:, None]
    return np.where(J - least <= 1e-12 * least, 0.0, J - least) if is_lqr(result) else J


def measure_name(result: xr.Dataset) -> str:
    return "J − J*" if is_lqr(result) else "J"


def typical(values: np.ndarray) -> float:
    """For (seed, set): the median over seeds of each set, and of these the median over sets."""
    return float(np.median(np.median(values, axis=0)))


def share_of_random(result: xr.Dataset, outcome: Outcome, statistic: Callable[[np.ndarray], Any]) -> Estimate:
    """statistic(outcome) / statistic(random sets), resampled over seeds, which are paired."""
    of_random = measure(result, outcomes(result)[0])
    return bootstrap(lambda chosen, random: ratio(float(statistic(chosen)), float(statistic(random))), measure(result, outcome), of_random)


def main_sheet(result: xr.Dataset) -> Sheet:
    """Medians over seeds."""
    every = outcomes(result)
    rows = []
    for outcome in every:
        values = measure(result, outcome)
        share = None if outcome.name == "random" else share_of_random(result, outcome, typical)
        above = outcome.costs.mean(axis=2) - result.least_cost.values[:, None]
        rows.append(
            [
                outcome.name,
                *([] if is_lqr(result) else [_short(typical(values))]),
                _short(typical(above)),
                "1" if share is None else _interval(share),
                f"{outcome.rollouts:,.0f}",
            ]
        )
    headings = ["method", *([] if is_lqr(result) else ["J"]), "J − J*", "random = 1 [95 %]", "rollouts"]
    return Sheet(f"{result.attrs['name']}: {settings(result)}", headings, rows, _note(result))


def tail_sheet(result: xr.Dataset) -> Sheet:
    """Regret; the worst candidate, and the worst fifth; for LQRs the mean over systems, for networks what other starts make of it."""
    every = outcomes(result)
    best = measure(result, every[-1])
    whole = np.array([bool(np.all(np.isfinite(of_seed))) for of_seed in result.cost.values])
    rows = []
    for outcome in every:
        with np.errstate(invalid="ignore"):
            regret = typical(np.where(np.isinf(best), 0.0, measure(result, outcome) - best))  # nothing is better where all diverge
        tails = [_short(regret), _short(typical(outcome.costs.max(axis=2))), _short(typical(cvar(outcome.costs, TAIL)))]
        runs = ratio(float(np.median(measure(result, outcome))), float(np.median(measure(result, every[0]))))
        others = [f"{_good(result, outcome):.0%}", _short(_of_other_starts(result, outcome.name)), _short(runs)]
        rows.append(
            [outcome.name, *(_means(result, outcome, whole) if is_lqr(result) else []), *tails, *([] if is_lqr(result) else others)]
        )
    note = f"Regret: against the best set of the seed. Worst: J from the worst candidate, and the mean over the worst {TAIL:.0%}."
    if is_lqr(result):
        note += f" Mean: of J − J* over the {whole.sum()} of {len(whole)} systems for which no set diverged; the rest are medians."
        return Sheet(_title(result), ["method", "mean", "random = 1 [95 %]", "regret", "worst", f"worst {TAIL:.0%}"], rows, note)
    note += f" All are medians. Good: the share of runs that end within {GOOD:g} J*. Others: J of the choice from the other seeds' starts."
    note += " Runs = 1: the ratio of medians where random's is over all runs alike, not over starts first. The best set is that of each"
    note += " start, found after training, so in part luck."
    return Sheet(_title(result), ["method", "regret", "worst", f"worst {TAIL:.0%}", "good", "others", "runs = 1"], rows, note)


def _title(result: xr.Dataset) -> str:
    return f"{result.attrs['name']}: tails"


def _means(result: xr.Dataset, outcome: Outcome, whole: np.ndarray) -> list[str]:
    """The mean over the systems for which it is finite whatever is chosen, and its share of random's."""
    if not whole.any():
        return ["–", "–"]
    some, finite = result.isel(seed=whole), outcome._replace(costs=outcome.costs[whole])
    share = "1" if outcome.name == "random" else _interval(share_of_random(some, finite, np.mean))
    return [_short(float(np.mean(measure(some, finite)))), share]


def _good(result: xr.Dataset, outcome: Outcome) -> float:
    return float(np.mean(outcome.costs.mean(axis=2) <= GOOD * result.least_cost.values[:, None]))


def _of_other_starts(result: xr.Dataset, name: str) -> float:
    methods = result.method.values.tolist()
    if name not in methods:
        return float("nan")
    J = result.cost.values.mean(axis=2)
    choice = result.choice.values[:, methods.index(name)]
    return float(np.median([J[j, choice[i]] for i in range(len(J)) for j in range(len(J)) if i != j] or [np.nan]))


class Correlation(NamedTuple):
    """How well a number known early ranks the random sets by their outcome: 1 is perfect, 0 nothing."""

    name: str
    within: Estimate  # a seed, in the mean over seeds
    of_medians: float  # over seeds


def correlations(result: xr.Dataset) -> list[Correlation]:
    """Of every criterion, and of what is seen early in training."""
    some = result.isel(set=result.is_random.values)
    outcome = -some.cost.values.mean(axis=2)
    known = {name: some.score.values[:, :, i] for i, name in enumerate(some.criterion.values.tolist())}
    for share in SHARES:
        look = share * (some.sizes["iteration"] - 1)
        if look < 1 or not math.isclose(look, round(look)):
            continue  # there was no look at that time
        look = round(look)
        so_far = some.cost_curve.values[:, :, look]
        known[f"alignment after {share:.0%}"] = np.where(np.isfinite(so_far), some.alignment_curve.values[:, :, look], -np.inf)
        known[f"cost after {share:.0%}"] = -so_far
    found = []
    for name, defined_or_not in known.items():
        values = np.where(np.isnan(defined_or_not), -np.inf, defined_or_not)  # what overflows promises least
        within = np.array([rank_correlation(one, end) for one, end in zip(values, outcome, strict=True)])
        defined = within[~np.isnan(within)]
        nothing = Estimate(float("nan"), float("nan"), float("nan"))
        estimate = bootstrap(lambda one: float(np.mean(one)), defined) if len(defined) else nothing
        found.append(Correlation(name, estimate, rank_correlation(np.median(values, axis=0), np.median(outcome, axis=0))))
    return found


def correlation_sheet(result: xr.Dataset, found: list[Correlation]) -> Sheet:
    with_medians = not is_lqr(result)
    rows = [[row.name, _interval(row.within), *([number(row.of_medians, ".2f")] if with_medians else [])] for row in found]
    headings = ["known before or early", "rank correlation [95 %]", *(["of medians"] if with_medians else [])]
    seeds, sets = result.sizes["seed"], int(result.is_random.sum())
    note = f"Spearman's ρ with J over all candidates after training, over {sets} random sets; mean over {seeds} seeds."
    note += " –: the same for every set." if any(np.isnan(row.within.value) for row in found) else ""
    note += " Of medians: of medians over seeds on both sides." if with_medians else ""
    return Sheet(f"{result.attrs['name']}: what tells the outcome", headings, rows, note)


def outcome_data(result: xr.Dataset) -> pd.DataFrame:
    rows = [
        {
            "method": outcome.name,
            "seed": int(seed),
            "set": s,
            "J": float(one.mean()),
            "worst_J": float(one.max()),
            "rollouts": outcome.rollouts,
            "measure": float(value),
        }
        for outcome in outcomes(result)
        for seed, of_seed, values in zip(result.seed.values, outcome.costs, measure(result, outcome), strict=True)
        for s, (one, value) in enumerate(zip(of_seed, values, strict=True))
    ]
    return pd.DataFrame(rows)


def correlation_data(found: list[Correlation]) -> pd.DataFrame:
    return pd.DataFrame([{"name": row.name, **row.within._asdict(), "of_medians": row.of_medians} for row in found])


def _note(result: xr.Dataset) -> str:
    diverged = int((result.status == DIVERGED).sum())
    seeds, training = result.sizes["seed"], result.attrs["iterations"] * result.sizes["seen"]
    parts = [f"Medians over {seeds} {'systems' if is_lqr(result) else 'starts'}, and over sets for random; {_random(result)}."]
    parts.append(f"random = 1: the ratio of medians of {measure_name(result)}, with its bootstrap interval.")
    least = "J* is the least there is" if is_lqr(result) else "J* is the least that was found"
    parts.append(
        f"J is over all {result.sizes['candidate']} candidates; {least}. Rollouts are those of choosing; one training has {training:,}."
    )
    if any(outcome.name.endswith("(own run)") for outcome in outcomes(result)):
        parts.append("Own run: what the method trained on its way; else the chosen set is trained anew.")
    if not bool(result.explores.any()):
        parts.append("No choice explores here: each is as good as any.")
    if diverged:
        parts.append(f"{diverged} of {result.status.size} runs diverged; these count as ∞.")
    return " ".join(parts)


def _random(result: xr.Dataset) -> str:
    return f"random: all {result.sizes['set']} sets there are" if is_complete(result) else f"random: {int(result.is_random.sum())} sets"


def settings(result: xr.Dataset) -> str:
    a = result.attrs
    quick = "QUICK LOOK: " if a["quick"] else ""
    shape = f", D = {a['dim']}, H = {a['horizon']}" if is_lqr(result) else ""
    return f"{quick}{a['problem']}{shape}, {a['choose']} of {result.sizes['candidate']} states, {a['iterations']:,} iterations"


def _interval(estimate: Estimate) -> str:
    value, low, high = (number(one, ".2f" if abs(one) < 100 else ".0e") for one in estimate)
    return value if value == "–" else f"{value} [{low}, {high}]"


def _short(value: float) -> str:
    return number(value, ".3g" if abs(value) < 1000 else ".1e")
