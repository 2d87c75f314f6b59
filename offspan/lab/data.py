"""What is embedded in the page: the pendulum's networks, or a finished run."""

import base64
from typing import Any

import numpy as np
import xarray as xr

Layers = list[tuple[np.ndarray, np.ndarray]]


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
