"""The report of a network experiment: how well do controllers do from states that they were not trained on? Numbers and tables."""

import numpy as np
import pandas as pd
import xarray as xr

from offspan.report.results import DIVERGED, quartiles
from offspan.report.tables import Sheet, number

OBJECTIVES = {"policy_gradient": "policy gradient", "non_extrapolating": "non-extrapolating", "minimal_cost": "trained on unseen"}
PAPER = {"pendulum": 0.003, "quadcopter-below": 0.032}  # the medians of five seeds that [R24, fig:pend_and_quad_experiments_main] prints
NAMES = {
    "pendulum": ["θ", "dθ/dt"],
    "quadcopter": ["x", "y", "z", "φ", "θ", "ψ", "dx/dt", "dy/dt", "dz/dt", "dφ/dt", "dθ/dt", "dψ/dt"],
}


def paper_number(result: xr.Dataset) -> float | None:
    """What the paper prints, for a result with the paper's settings."""
    return PAPER.get(result.attrs.get("preset", ""))


def seed_data(result: xr.Dataset) -> pd.DataFrame:
    """A row for each run."""
    rows = []
    for objective in OBJECTIVES:
        of = lambda name, objective=objective: result[f"{objective}_{name}"]  # noqa: E731
        seeds = result.seed if objective == "policy_gradient" else result.baseline_seed
        measures = result.normalized_cost.values if objective == "policy_gradient" else np.full(len(seeds), np.nan)
        words = np.array(of("status").attrs["flag_meanings"].split())
        columns = {
            "objective": objective,
            "seed": seeds.values,
            "status": words[of("status").values],
            "iterations": of("iterations").values,
            "seen_cost": of("seen_cost").mean("seen").values,
            "unseen_cost": of("unseen_cost").mean("unseen").values,
            "normalized_cost": measures,
        }
        rows.append(pd.DataFrame(columns))
    return pd.concat(rows, ignore_index=True)


def curve_data(result: xr.Dataset) -> pd.DataFrame:
    """J over the states that were trained on, against iterations."""
    return _long(result, "curve").dropna()


def unseen_data(result: xr.Dataset) -> pd.DataFrame:
    """J from each unseen state, for each run."""
    return _long(result, "unseen_cost")


def _long(result: xr.Dataset, name: str) -> pd.DataFrame:
    """One of the variables that every objective has, a row for each number."""
    frames = []
    for objective in OBJECTIVES:
        frame = result[f"{objective}_{name}"].rename("cost").to_dataframe().reset_index()
        frames.append(frame.rename(columns={"baseline_seed": "seed"}).assign(objective=objective))
    return pd.concat(frames, ignore_index=True)


def trajectory_data(result: xr.Dataset) -> pd.DataFrame:
    """The trajectories that are shown, a row for each state and time."""
    names = NAMES[result.attrs["problem"]]
    rows = []
    for objective in ("policy_gradient", "non_extrapolating"):
        for group in ("seen", "unseen"):
            states = result[f"{objective}_{group}_trajectory"].values
            place, time = np.indices(states.shape[:2]).reshape(2, -1)
            frame = pd.DataFrame(states.reshape(-1, states.shape[2]), columns=names)
            rows.append(frame.assign(objective=objective, group=group, place=place, time=time))
    return pd.concat(rows, ignore_index=True)


def measure_text(result: xr.Dataset) -> str:
    """Median and quartiles of the normalised cost measure."""
    low, median, high = (
        number(value, form) for value, form in zip(quartiles(result.normalized_cost).values, (".2g", ".3g", ".2g"), strict=True)
    )
    return median if low == high else f"{median} ({low}–{high})"


def network_sheet(result: xr.Dataset) -> Sheet:
    rows = []
    shown = {
        "policy_gradient": int(result.shown_seed),
        "non_extrapolating": int(result.shown_baseline_seed),
        "minimal_cost": int(result.least_seed),
    }
    for objective, label in OBJECTIVES.items():
        status = result[f"{objective}_status"]
        one = result.sel({status.dims[0]: shown[objective]})
        costs = [f"{float(one[f'{objective}_{group}_cost'].mean()):.3g}" for group in ("seen", "unseen")]
        ends = {"non_extrapolating": "1", "minimal_cost": "0"} if _is_defined(result) else {}
        measure = measure_text(result) if objective == "policy_gradient" else ends.get(objective, "–")
        rows.append([label, f"{int((status == DIVERGED).sum())}/{status.size}", str(shown[objective]), *costs, measure])
    return Sheet(
        f"{result.attrs['name']}: normalised cost measure, median (quartiles)",
        ["controller", "diverged", "seed", "J(S)", "J(U)", "measure"],
        rows,
        _note(result),
    )


def _note(result: xr.Dataset) -> str:
    parts = [
        "0 = perfect, 1 = no extrapolation, more = worse than that; a run that diverged counts as the worst.",
        "Costs are of the seed named: of median measure, of lowest J(S), of lowest J(U).",
    ]
    parts += _doubts(result)
    if not _is_defined(result):
        parts.append("The measure is not defined: non-extrapolating runs diverged, or cost no more than those trained on unseen states.")
    if (said := paper_number(result)) is not None:
        parts.append(f"The paper prints {said:g} for its median of five seeds.")
    if result.attrs["quick"]:
        parts.append(f"A QUICK LOOK: {result.attrs['iterations']:,} iterations are too few to compare.")
    if diagnoses := result.attrs["diagnoses"]:
        first, *others = diagnoses.split("\n\n")
        happened, _, advice = first.split("\n")
        parts.append(f"{happened} {advice}" + (f" {len(others)} more diverged: see `diagnoses` in result.nc." if others else ""))
    return " ".join(parts)


def _doubts(result: xr.Dataset) -> list[str]:
    """A controller to compare with should be as good on the seen states, and no seed much better than the estimate of the least cost."""
    doubts = []
    learned = float(result.policy_gradient_training_cost.sel(seed=int(result.shown_seed)))
    baseline = float(result.non_extrapolating_training_cost.sel(baseline_seed=int(result.shown_baseline_seed)))
    if baseline > 1.5 * learned:
        ratio = f"{baseline / learned:.1f}"
        doubts.append(f"On the seen states the non-extrapolating run costs {ratio} times the other, so the measure says little.")
    if (result.normalized_cost < -0.01).any():
        doubts.append("A seed below 0 beats the runs that were trained on the unseen states, so these were not trained to their end.")
    return doubts


def _is_defined(result: xr.Dataset) -> bool:
    return not bool(np.isnan(result.normalized_cost).any())


def states_sheet(result: xr.Dataset) -> Sheet:
    """Target, initial and final states of the two runs that are shown, as in [R24, table:pend_experiments_states] and its like."""
    numbers = lambda state: [f"{value + 0.0:.2f}".replace("-0.00", "0.00") for value in state]  # noqa: E731
    rows = [["target", "", *numbers(result.target.values)]]
    labels = {"policy_gradient": "final, policy gradient", "non_extrapolating": "final, non-extrapolating"}
    for group in ("seen", "unseen"):
        rows += [[group, "initial", *numbers(state)] for state in result[f"{group}_state"].values]
        for objective, label in labels.items():
            rows += [[group, label, *numbers(state)] for state in result[f"{objective}_{group}_trajectory"].values[:, -1]]
    title = f"{result.attrs['name']}: states, policy gradient with seed {int(result.shown_seed)}"
    note = f"Final states are those at time step {result.attrs['horizon']}."
    return Sheet(title, ["states", "", *NAMES[result.attrs["problem"]]], rows, note)
