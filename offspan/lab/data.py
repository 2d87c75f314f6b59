"""What is embedded in the page: the pendulum's networks, or a finished run."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from offspan.errors import OffspanError
from offspan.experiments.lqr import LQRSpec, Setting, distinct_runs, problems_of, seen_set
from offspan.experiments.mapping import map_of_run
from offspan.experiments.network import NetworkSpec
from offspan.experiments.registry import load_preset
from offspan.experiments.store import RunFolder

Layers = list[tuple[np.ndarray, np.ndarray]]
MOST_STATES, MOST_SYSTEMS, MAP_POINTS = 8, 60, 81
NETWORKS = Path(__file__).parent / "pendulum.json"  # written by checkpoints.py


def usual() -> dict[str, Any]:
    """Of the page in the docs: the tab to start with, no systems of a run, and the stored networks of the pendulum."""
    spec = load_preset("pendulum")
    assert isinstance(spec, NetworkSpec)
    networks = json.loads(NETWORKS.read_text(encoding="utf-8"))["networks"]
    return {"start": "explore", "systems": [], "systems_in_run": 0, "pendulum": {"networks": networks, **_states(spec)}}


def of_run(folder: RunFolder) -> dict[str, Any]:
    """The same with the systems of an LQR run, the networks of a pendulum's, or the map of another network run."""
    spec, found = folder.spec(), usual()
    if isinstance(spec, LQRSpec):
        return {**found, **_systems(spec, folder.load_result())}
    if not isinstance(spec, NetworkSpec):
        raise OffspanError(f"{folder.path} is a run of the kind {spec.kind}; the lab shows runs of the kinds lqr and network.")
    result = folder.load_result()
    if spec.problem == "pendulum" and not spec.settings:
        return {**found, "start": "pendulum", "pendulum": {"networks": _networks(spec, result), **_states(spec)}}
    return {**found, "start": "pendulum", "pendulum": {"map": _map(folder)}}


def _states(spec: NetworkSpec) -> dict[str, Any]:
    return {"seen": [[*x, 0.0][:2] for x in spec.seen_states], "unseen": [[*x, 0.0][:2] for x in spec.unseen_states]}


def _systems(spec: LQRSpec, result: xr.Dataset) -> dict[str, Any]:
    """The first distinct runs of a dimension that the lab takes, and how many the run has of any."""
    runs, _ = distinct_runs(spec)
    small = [(dim, horizon) for dim, horizon in spec.shapes() if 2 <= dim <= MOST_STATES]
    if not small:
        raise OffspanError(f"the systems of {spec.name} have {min(spec.dim)} states or more, and the lab takes from 2 to {MOST_STATES}.")
    shown = [(run, dim, horizon) for dim, horizon in small for run in runs][:MOST_SYSTEMS]
    systems = [_system(spec, result, run, dim, horizon) for run, dim, horizon in shown]
    return {"systems": systems, "systems_in_run": len(spec.shapes()) * len(runs)}


def _system(spec: LQRSpec, result: xr.Dataset, run: Setting, dim: int, horizon: int) -> dict[str, Any]:
    (problem,) = problems_of(spec, [run], dim, horizon)
    at = {"system": run.system, "dim": dim, "horizon": horizon, "learning_rate": run.learning_rate, "seen": run.seen, "seed": run.seed}
    ends = result.normalized_optimality.sel(at).dropna("iteration").values  # a run that ended early has NaN after its end
    random = f", seed {run.seed}" if spec.depends_on_seed(run.system) else ""
    return {
        "name": f"{run.system}{random}: D = {dim}, H = {horizon}, {run.seen} seen, η = {run.learning_rate:g}",
        "problem": {name: np.asarray(getattr(problem, name), float).tolist() for name in "ABQR"},
        "horizon": horizon,
        "rate": run.learning_rate,
        "seen": seen_set(spec, dim, run.seen).astype(float).tolist(),
        "optimality": float(ends[-1]) if len(ends) and np.isfinite(ends[-1]) else None,
    }


def _networks(spec: NetworkSpec, result: xr.Dataset) -> list[dict[str, Any]]:
    found = []
    for objective, seeds in (("policy_gradient", spec.seeds), ("non_extrapolating", spec.baseline_seeds)):
        if f"{objective}_W0" not in result:
            raise OffspanError(f"the result of {spec.name} holds no networks; run it again to have them.")
        iterations = result[f"{objective}_iterations"].values.max()  # one number for all seeds, so that they can be changed on their own
        found += [
            {"objective": objective, "seed": seed, "iteration": int(iterations), "layers": packed(stored_layers(result, objective, seed))}
            for seed in seeds
        ]
    return found


def _map(folder: RunFolder) -> dict[str, Any]:
    """What the controller of a network run costs over its own region, upwards rows last to first, as a picture has them."""
    of_run = map_of_run(folder, None, points=MAP_POINTS, margin=0.25)
    found = of_run.map
    if len(found.coordinates) != 2:
        raise OffspanError(f"the map of {folder.path} has one coordinate, and the lab draws those of two.")
    x, y = (np.asarray(axis, float) for axis in found.axes)
    costs = np.asarray(found.values, float).T[::-1]
    shown = lambda states: np.asarray(states, float)[:, list(found.coordinates)].tolist()  # noqa: E731
    return {
        "title": of_run.title,
        "names": [of_run.coordinates[d] for d in found.coordinates],
        **{"x": x.tolist(), "y": y.tolist(), "seen": shown(of_run.seen), "unseen": shown(of_run.unseen)},
        "cost": [[float(f"{cost:.5g}") if np.isfinite(cost) else None for cost in row] for row in costs],
    }


def packed(layers: Layers) -> list[dict[str, Any]]:
    """(W, b) of each layer as base64 of half-precision numbers, row by row, the bias last."""
    return [
        {"out": len(b), "in": W.shape[1], "half": base64.b64encode(np.concatenate([W.ravel(), b]).astype("<f2").tobytes()).decode()}
        for W, b in layers
    ]


def unpacked(layers: list[dict[str, Any]]) -> Layers:
    """The same networks as the page has them: float32 numbers that were rounded to half precision."""
    found = []
    for layer in layers:
        flat = np.frombuffer(base64.b64decode(layer["half"]), "<f2").astype(np.float32)
        found.append((flat[: layer["out"] * layer["in"]].reshape(layer["out"], layer["in"]), flat[layer["out"] * layer["in"] :]))
    return found


def stored_layers(result: xr.Dataset, objective: str, seed: int) -> Layers:
    """Of one network of a stored result."""
    one = result.sel({"seed" if objective == "policy_gradient" else "baseline_seed": seed})
    depth = sum(name.startswith(f"{objective}_W") for name in map(str, result.data_vars))
    return [(one[f"{objective}_W{i}"].values, one[f"{objective}_b{i}"].values) for i in range(depth)]
