"""The report of a comparison of methods that choose initial states: outcomes against random sets, and what predicts them; and the table
of a single choice."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offspan.report import results
from offspan.report.drawing import GREEN, LEFT, LOWER, PINK, heading, iteration_axis, legend_below, log_axis, short, styled, subplots
from offspan.report.results import Estimate, Report, bootstrap, cvar, rank_correlation, ratio
from offspan.report.tables import Table, from_columns, number
from offspan.selection import Selection
from offspan.selection.methods import METHODS

SHARES = (0.05, 0.1, 0.25)  # of training, after which the cost so far and the alignment are correlated with the outcome
TAIL = 0.2
GOOD = 1.5  # times the least cost
MOST_ROWS = 40  # of the table of a choice
AGAINST_RANDOM = "relative to random [95 % CI]"
RANKS = 0.5  # a rank correlation below it ranks little
LARGEST = 10.0  # an interval that reaches further says no more
PANELS = {
    "cost_curve": f"cost over all candidates, {LOWER}",
    "alignment_curve": "cosine of the gradients\non S and on all candidates",
    "coverage_curve": f"largest distance of a\ncandidate to what is visited, {LOWER}",
}


class Outcome(NamedTuple):
    """What a method led to, with one set a seed for all but random choice."""

    name: str
    costs: np.ndarray  # J from each candidate (seed, set, candidate)
    measure: np.ndarray  # J over all candidates (seed, set); less J*, for an LQR, where that is known exactly (up to rounding, which is 0)
    rollouts: float


class Correlation(NamedTuple):
    """How well a number that is known early ranks the random sets by their outcome: 1 is perfect, 0 nothing."""

    name: str
    within: Estimate  # a seed, in the mean over seeds
    of_medians: float  # over seeds


def report(result: xr.Dataset, beside: xr.Dataset | None) -> Report:
    data, found = outcome_data(result), correlations(result)
    ranked = pd.DataFrame([{"name": row.name, **row.within._asdict(), "of_medians": row.of_medians} for row in found])
    tables = {"table": main_table(result), "tails": tail_table(result), "correlations": correlation_table(result, found)}
    captions = {
        "methods": f"{finding(result)}. A dot for each system or start, by method of choosing, the cheapest first.",
        "correlations": f"{_best_ranks(found)}. Rank correlation of each predictor, known before or early in training, with the outcome.",
        "training": "Cost, alignment of gradients and coverage along training.",
    }
    figures = lambda: {  # noqa: E731
        "methods": (methods_figure(result), data),
        "correlations": (correlations_figure(result, found), ranked),
        "training": (training_figure(result), result[list(PANELS)].to_dataframe().reset_index()),
    }
    return Report(tables, data, captions, figures)


def outcomes(result: xr.Dataset) -> list[Outcome]:
    """Random sets; each method's choice; what a method itself trained, where that was a training of full length; and the best set."""
    costs, choice, least = result.cost.values, result.choice.values, result.least_cost.values[:, None]
    seeds = np.arange(len(costs))

    def outcome(name: str, costs: np.ndarray, rollouts: float) -> Outcome:
        J = costs.mean(axis=2)
        return Outcome(name, costs, np.where(J - least <= 1e-12 * least, 0.0, J - least) if is_lqr(result) else J, float(rollouts))

    found = [outcome("random", costs[:, result.is_random.values], 0.0)]
    for m, name in enumerate(result.method.values.tolist()):
        rollouts = np.median(result.rollouts.values[:, m])
        found.append(outcome(name, costs[seeds, choice[:, m]][:, None], rollouts))
        own = result.own_cost.values[:, m]
        if np.all(~np.isnan(own)) and result.attrs["pilot_iterations"] == result.attrs["iterations"]:
            found.append(outcome(f"{name} (own run)", own[:, None], rollouts))
    best = costs[seeds, costs.mean(axis=2).argmin(axis=1)]
    # All sets, trained and evaluated.
    rollouts = np.median(result.iterations.sum("set")) * result.sizes["seen"] + result.sizes["set"] * result.sizes["candidate"]
    return [*found, outcome("best set" if _is_complete(result) else f"best of {result.sizes['set']} sets", best[:, None], rollouts)]


def _is_complete(result: xr.Dataset) -> bool:
    """Whether every set there is was trained."""
    return result.sizes["set"] == math.comb(result.sizes["candidate"], result.sizes["seen"])


def is_lqr(result: xr.Dataset) -> bool:
    return "dim" in result.attrs


def typical(values: np.ndarray) -> float:
    """For (seed, set): the median over seeds of each set, and of these the median over sets."""
    return float(np.median(np.median(values, axis=0)))


def share_of_random(result: xr.Dataset, outcome: Outcome, statistic: Callable[[np.ndarray], Any]) -> Estimate:
    """statistic(outcome) / statistic(random sets), resampled over seeds, which are paired."""
    of_random = outcomes(result)[0].measure
    return bootstrap(lambda chosen, random: ratio(float(statistic(chosen)), float(statistic(random))), outcome.measure, of_random)


def _against_random(result: xr.Dataset, outcome: Outcome, statistic: Callable[[np.ndarray], Any]) -> str:
    return "1" if outcome.name == "random" else _interval(share_of_random(result, outcome, statistic))


def main_table(result: xr.Dataset) -> Table:
    """Medians over seeds."""
    every, least = outcomes(result), result.least_cost.values[:, None]
    columns = {"method": [outcome.name for outcome in every]}
    if not is_lqr(result):
        columns["J"] = [_short(typical(outcome.measure)) for outcome in every]
    columns |= {
        "J − J*": [_short(typical(outcome.costs.mean(axis=2) - least)) for outcome in every],
        AGAINST_RANDOM: [_against_random(result, outcome, typical) for outcome in every],
        "rollouts": [f"{outcome.rollouts:,.0f}" for outcome in every],
    }
    return from_columns(f"{results.quick_mark(result)}{result.attrs['name']}: {_settings(result)}", columns, _note(result))


def tail_table(result: xr.Dataset) -> Table:
    """Regret; the worst candidate, and the worst fifth; for LQRs the mean over systems, for networks the choice from other starts."""
    every = outcomes(result)
    random, best = every[0].measure, every[-1].measure
    columns = {"method": [outcome.name for outcome in every]}
    note = f"Regret: against the best set of the seed. Worst: J from the worst candidate, and the mean over the worst {TAIL:.0%}."
    if is_lqr(result):
        whole = np.isfinite(result.cost.values).all(axis=(1, 2))  # systems for which the mean is finite whatever is chosen
        finite, some = [outcome._replace(measure=outcome.measure[whole]) for outcome in every], result.isel(seed=whole)
        columns["mean"] = [_short(float(np.mean(one.measure))) if whole.any() else "–" for one in finite]
        columns[AGAINST_RANDOM] = [_against_random(some, one, np.mean) if whole.any() else "–" for one in finite]
        note += f" Mean: of J − J* over the {whole.sum()} of {len(whole)} systems for which no set diverged; the rest are medians."
    with np.errstate(invalid="ignore"):  # where all diverge, nothing is better
        columns["regret"] = [_short(typical(np.where(np.isinf(best), 0.0, outcome.measure - best))) for outcome in every]
    columns |= {
        "worst": [_short(typical(outcome.costs.max(axis=2))) for outcome in every],
        f"worst {TAIL:.0%}": [_short(typical(cvar(outcome.costs, TAIL))) for outcome in every],
    }
    if not is_lqr(result):
        good = GOOD * result.least_cost.values[:, None]
        columns |= {
            f"runs within {GOOD:g} J*": [f"{np.mean(outcome.costs.mean(axis=2) <= good):.0%}" for outcome in every],
            "J from other initial networks": [_short(_from_other_starts(result, outcome.name)) for outcome in every],
            "relative to random, pooled over starts": [
                _short(ratio(float(np.median(outcome.measure)), float(np.median(random)))) for outcome in every
            ],
        }
        note += (
            " All are medians. J from other initial networks: of the set chosen for one seed, trained from the starts of the others. Pooled"
            " over starts: the ratio of medians where random's is over all runs alike, not over starts first. The best set is that of each"
            " start, found after training, so in part luck."
        )
    return from_columns(f"{result.attrs['name']}: tails", columns, note)


def _from_other_starts(result: xr.Dataset, name: str) -> float:
    """The median of J of the set chosen for one seed, trained from the starts of the others."""
    if name not in result.method.values:
        return float("nan")
    J, choice = result.cost.values.mean(axis=2), _choice(result, name)
    return float(np.median([J[j, choice[i]] for i in range(len(J)) for j in range(len(J)) if i != j] or [np.nan]))


def _choice(result: xr.Dataset, method: str) -> np.ndarray:
    return result.choice.values[:, result.method.values.tolist().index(method)]


def correlations(result: xr.Dataset) -> list[Correlation]:
    """Of every criterion, and of what is measured early in training, with the outcome."""
    some = result.isel(set=result.is_random.values)
    outcome = -some.cost.values.mean(axis=2)
    known = {name: some.score.values[:, :, i] for i, name in enumerate(some.criterion.values.tolist())}
    for share in SHARES:
        place = share * (some.sizes["iteration"] - 1)
        if place < 1 or not math.isclose(place, round(place)):
            continue  # there was no evaluation at that time
        so_far, alignment = some.cost_curve.values[:, :, round(place)], some.alignment_curve.values[:, :, round(place)]
        known[f"alignment after {share:.0%}"] = np.where(np.isfinite(so_far), alignment, -np.inf)
        known[f"cost after {share:.0%}"] = -so_far
    found = []
    for name, defined_or_not in known.items():
        values = np.where(np.isnan(defined_or_not), -np.inf, defined_or_not)  # a set whose score overflows ranks last
        within = np.array([rank_correlation(one, end) for one, end in zip(values, outcome, strict=True)])
        defined = within[~np.isnan(within)]
        estimate = bootstrap(lambda one: float(np.mean(one)), defined) if len(defined) else Estimate(*[float("nan")] * 3)
        found.append(Correlation(name, estimate, rank_correlation(np.median(values, axis=0), np.median(outcome, axis=0))))
    return found


def correlation_table(result: xr.Dataset, found: list[Correlation]) -> Table:
    columns = {"predictor": [row.name for row in found], "rank correlation [95 % CI]": [_interval(row.within) for row in found]}
    seeds, sets = result.sizes["seed"], int(result.is_random.sum())
    note = f"Spearman's ρ with J over all candidates after training, over {sets} random sets; mean over {seeds} seeds."
    note += " –: the same for every set." if any(np.isnan(row.within.value) for row in found) else ""
    if not is_lqr(result):
        columns["of medians"] = [number(row.of_medians, ".2f") for row in found]
        note += " Of medians: of medians over seeds on both sides."
    return from_columns(f"{result.attrs['name']}: predictors of the outcome", columns, note)


def outcome_data(result: xr.Dataset) -> pd.DataFrame:
    """A row for each run."""
    frames = []
    for outcome in outcomes(result):
        seed, place = np.indices(outcome.measure.shape).reshape(2, -1)
        J, worst = outcome.costs.mean(axis=2).ravel(), outcome.costs.max(axis=2).ravel()
        columns = {"method": outcome.name, "seed": result.seed.values[seed], "set": place, "J": J, "worst_J": worst}
        frames.append(pd.DataFrame({**columns, "rollouts": outcome.rollouts, "measure": outcome.measure.ravel()}))
    return pd.concat(frames, ignore_index=True)


def choice_table(selection: Selection, candidates: np.ndarray) -> Table:
    """All candidates, the chosen ones first, each part by score."""
    chosen = {int(i) for i in selection.indices}
    order = sorted(range(len(candidates)), key=lambda i: (i not in chosen, -selection.scores[i], i))
    rows = [
        [str(rank + 1), str(i), _state(candidates[i]), f"{selection.scores[i]:.3g}", "chosen" if i in chosen else ""]
        for rank, i in enumerate(order[: max(MOST_ROWS, len(chosen))])
    ]
    left = len(candidates) - len(rows)
    note = f"Score: {METHODS[selection.method].meaning}. {selection.rollouts:,} rollouts were made." + (
        f" {left} more candidates." if left else ""
    )
    title = f"{len(chosen)} of {len(candidates)} states by {selection.method}"
    return Table(title, ["rank", "candidate", "state", "score", ""], rows, note)


def _state(x: np.ndarray) -> str:
    """A long one without the zeros at its end."""
    used = len(x) if len(x) <= 6 else max(int(np.flatnonzero(x)[-1]) + 1 if np.any(x) else 1, 1)
    return "(" + ", ".join(f"{value:.4g}" for value in x[:used]) + (", 0 …)" if used < len(x) else ")")


@styled
def methods_figure(result: xr.Dataset) -> Figure:
    """The outcome of each method, a dot for each run, with its median, the cheapest first; behind them the middle half of the runs of
    random sets."""
    first, *methods, best = outcomes(result)
    every = [first, *sorted(methods, key=lambda outcome: outcome.rollouts), best]
    figure, ax = subplots(7.6, 1.7 + 0.36 * len(every))
    of_random = first.measure
    finite = np.concatenate([outcome.measure.ravel() for outcome in every])
    finite = finite[np.isfinite(finite) & (finite > 0)]
    least, most = (finite.min(), np.quantile(finite, 0.98)) if len(finite) else (0.1, 1.0)  # where all diverged, or all are optimal
    low, high = (min(one, 2 * most) for one in np.quantile(of_random, [0.25, 0.75], method="closest_observation"))
    ax.axvspan(low, high, color="black", alpha=0.08, linewidth=0, zorder=0, label="random sets, the middle half of the runs")
    ax.axvline(typical(of_random), color="0.6", linewidth=1, zorder=1, label="their median, over seeds and then sets")
    rng = np.random.default_rng(0)
    for place, outcome in enumerate(reversed(every)):
        values, middle = outcome.measure, typical(outcome.measure)
        shown = values[(values >= least) & (values <= 1.5 * most)]
        colour = {"random": "black", "best": "black"}.get(outcome.name.split()[0], GREEN)
        alpha = max(0.06, 0.5 / (1 + values.size / 200)) * (0.7 if outcome is first else 1)
        ax.scatter(shown, place + rng.uniform(-0.22, 0.22, len(shown)), s=7, color=colour, alpha=alpha)
        if least <= middle <= 1.5 * most:
            ax.plot([middle, middle], [place - 0.34, place + 0.34], color=colour, linewidth=2.5)
        beyond, diverged = int(np.sum(np.isfinite(values) & (values > 1.5 * most))), int(np.sum(~np.isfinite(values)))
        if beyond or diverged:
            said = ", ".join([*([f"{beyond} beyond"] if beyond else []), *([f"{diverged} diverged"] if diverged else [])])
            said = f"→ {said}" + (f"; median {short(middle)}" if middle > 1.5 * most else "")
            ax.text(1.01, place, said, transform=ax.get_yaxis_transform(), ha="left", va="center", fontsize=7.5)
    ax.set_yticks(range(len(every)), [f"{outcome.name}  ({outcome.rollouts:,.0f})" for outcome in reversed(every)])
    log_axis(ax, "x")
    ax.set_xlim(0.9 * least, 1.6 * most)
    ax.set_ylabel("method (rollouts to choose)")
    J = "excess cost over all candidates after training, J − J*" if is_lqr(result) else "cost over all candidates after training, J"
    ax.set_xlabel(f"{J}, {LEFT}")
    legend_below(ax, 2, fontsize=8)
    heading(figure, f"{results.quick_mark(result)}{finding(result)}", _settings(result))
    return figure


def finding(result: xr.Dataset) -> str:
    """The method with the lowest median of those that are compared, beside random sets and the best one."""
    first, *methods, best = outcomes(result)
    ways = [outcome for outcome in methods if not math.isnan(typical(outcome.measure))]
    if not ways or not math.isfinite(typical(first.measure)):
        return "Outcomes by method of choosing"
    lowest = min(ways, key=lambda outcome: typical(outcome.measure))
    to_random = [ratio(typical(outcome.measure), typical(first.measure)) for outcome in (lowest, best)]
    what = "excess cost" if is_lqr(result) else "cost"
    return f"Lowest median: {lowest.name}, {to_random[0]:.2f} of the {what} of random sets; {best.name}: {to_random[1]:.2f}"


@styled
def correlations_figure(result: xr.Dataset, found: list[Correlation]) -> Figure:
    """How well each number that is known before or early in training ranks the random sets."""
    rows = [row for row in found if not np.isnan(row.within.value)]
    figure, ax = subplots(7.0, 1.9 + 0.28 * len(rows))
    for place, row in enumerate(reversed(rows)):
        value, low, high = row.within
        colour, marker = (PINK, "s") if _is_early(row) else (GREEN, "o")
        label = "early in training" if _is_early(row) else "before training"
        ax.plot([low, high], [place, place], color=colour, linewidth=1.5, clip_on=False)
        ax.plot(value, place, marker, color=colour, markersize=5, clip_on=False, label=label)
        if not is_lqr(result):
            ax.plot(row.of_medians, place, "x", color="black", alpha=0.75, markersize=5, clip_on=False, label="of medians over seeds")
    ax.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
    ax.axvline(0, color="0.7", linewidth=0.8)
    ax.set_xlim(-1.05, 1.05)
    ax.set_xticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])
    ax.set_xlabel("rank correlation with the outcome, better →; 95% interval")
    named = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    figure.legend([named[label] for label in sorted(named)], sorted(named), loc="outside lower center", ncols=3)
    heading(figure, f"{results.quick_mark(result)}{_best_ranks(found)}", _settings(result))
    return figure


def _is_early(row: Correlation) -> bool:
    return "after" in row.name


def _best_ranks(found: list[Correlation]) -> str:
    """What ranks the sets best before training, and early in it."""
    parts, highest = [], -1.0
    for early, when in ((False, "before training"), (True, "early in training")):
        rows = [row for row in found if _is_early(row) == early and not np.isnan(row.within.value)]
        if rows:
            best = max(rows, key=lambda row: row.within.value)
            highest = max(highest, best.within.value)
            parts.append(f"{when} {best.name} (ρ = {best.within.value:.3g})")
    if not parts:
        return "Nothing ranks the sets"
    return f"{'Ranks sets best' if highest >= RANKS else 'Nothing ranks the sets well; highest'}: {', '.join(parts)}"


@styled
def training_figure(result: xr.Dataset) -> Figure:
    """Cost, alignment and coverage during training: of random sets (quartiles), and of the choices of two methods."""
    figure, axes = subplots(10.5, 4.0, 1, 3)
    shown = [name for name in ("gramian-logdet" if is_lqr(result) else "farthest", "pilot") if name in result.method.values]
    for ax, (name, label) in zip(axes, PANELS.items(), strict=True):
        _training_panel(ax, result, name, shown)
        ax.set_ylabel(label)
    if np.any(np.isfinite(result.cost_curve)):
        log_axis(axes[0], "y")
    axes[1].set_ylim(-1.05, 1.05)
    axes[2].set_ylim(bottom=0)  # all of it: what differs by little is seen to
    legend_below(axes[0], 4)
    heading(
        figure,
        f"{results.quick_mark(result)}{_in_training(result, shown)}",
        f"{_settings(result)}; medians over seeds, of random sets over all runs",
    )
    return figure


def _in_training(result: xr.Dataset, shown: list[str]) -> str:
    """The medians of the cost at the end."""
    last = result.cost_curve.values[:, :, -1]
    values = {"random sets": last[:, result.is_random.values].ravel()}
    values |= {method: last[np.arange(len(last)), _choice(result, method)] for method in shown}
    medians = {name: float(np.median(np.where(np.isnan(some), np.inf, some))) for name, some in values.items()}
    return "Median cost at the end: " + ", ".join(f"{_short(value)} for {name}" for name, value in medians.items())


def _training_panel(ax: Axes, result: xr.Dataset, name: str, shown: list[str]) -> None:
    iteration, curves = result.iteration.values, result[name].values
    if name != "cost_curve":
        curves = np.where(np.isfinite(result.cost_curve.values), curves, np.nan)  # a run that has diverged has none
    some = curves[:, result.is_random.values].reshape(-1, len(iteration))
    left = ~np.all(np.isnan(some), axis=0)  # evaluations before all runs had diverged
    if not left.any():
        return
    iteration, some, curves = iteration[left], some[:, left], curves[..., left]
    low, middle, high = np.nanquantile(some, [0.25, 0.5, 0.75], axis=0, method="closest_observation")
    top = 10 * np.nanmax(middle[np.isfinite(middle)], initial=1e-12)
    ax.fill_between(iteration, low, np.minimum(high, top), color="black", alpha=0.12, linewidth=0, label="random sets, quartiles")
    ax.plot(iteration, middle, color="0.4", linestyle=":", label="random sets, median")
    for method, colour, style in zip(shown, (GREEN, PINK), ("-", "--"), strict=False):
        chosen = curves[np.arange(len(curves)), _choice(result, method)]
        left = ~np.all(np.isnan(chosen), axis=0)
        ax.plot(iteration[left], np.nanmedian(chosen[:, left], axis=0), color=colour, linestyle=style, label=method)
    ax.set_xlim(0, int(iteration[-1]))
    iteration_axis(ax, 4)


def _note(result: xr.Dataset) -> str:
    seeds, training, candidates = result.sizes["seed"], result.attrs["iterations"] * result.sizes["seen"], result.sizes["candidate"]
    random = f"all {result.sizes['set']} sets there are" if _is_complete(result) else f"{int(result.is_random.sum())} sets"
    parts = [
        f"Medians over {seeds} {'systems' if is_lqr(result) else 'starts'}, and over sets for random; random: {random}.",
        f"Relative to random: the ratio of medians of {'J − J*' if is_lqr(result) else 'J'}, with its bootstrap interval.",
        f"J is over all {candidates} candidates; J* is the least {'there is' if is_lqr(result) else 'that was found'}.",
        f"Rollouts are those of choosing; one training has {training:,}.",
    ]
    if any(outcome.name.endswith("(own run)") for outcome in outcomes(result)):
        parts.append("Own run: what the method trained on its way; else the chosen set is trained anew.")
    if not bool(result.explores.any()):
        parts.append("No choice explores here: each is as good as any.")
    if diverged := int((result.status == results.DIVERGED).sum()):
        parts.append(f"{diverged} of {result.status.size} runs diverged; these count as ∞.")
    return " ".join(parts)


def _settings(result: xr.Dataset) -> str:
    a = result.attrs
    shape = f", D = {a['dim']}, H = {a['horizon']}" if is_lqr(result) else ""
    chosen = f"{a['choose']} of {result.sizes['candidate']} states"
    seeds = f"{result.sizes['seed']} {'systems' if is_lqr(result) else 'starts'}"
    return f"{a['problem']}{shape}, {chosen}, {a['iterations']:,} iterations, {seeds}"


def _interval(estimate: Estimate) -> str:
    """With an upper end beyond `LARGEST` as such: how far beyond says nothing."""
    value, low, high = (number(one, ".2f" if abs(one) < 100 else ".0e") for one in estimate)
    beyond = estimate.high > LARGEST > estimate.value
    return value if value == "–" else f"{value} [{low}, {f'> {LARGEST:g}' if beyond else high}]"


def _short(value: float) -> str:
    return number(value, ".3g" if abs(value) < 1000 else ".1e")
