"""What the results of all kinds share, and a stretch of training for those that look at many linear controllers on their way."""

from typing import Any

import numpy as np

from offspan.experiments.specs.base import Spec
from offspan.problems import LQR
from offspan.training import Status, train_lqr_batch
from offspan.training.loop import CHUNK

STATUS = [Status.finished, Status.converged, Status.diverged]  # the integers 0, 1, 2 of the stored variable `status`
STATUS_MEANING = {"flag_values": np.arange(len(STATUS), dtype=np.int8), "flag_meanings": " ".join(STATUS)}


def attributes(spec: Spec) -> dict[str, Any]:
    """What a result says of itself."""
    return {
        "kind": spec.kind,
        "name": spec.name,
        "title": spec.title,
        "iterations": spec.iterations,
        "quick": int(spec.quick),
        "precision": spec.precision,
    }


def status_numbers(status: np.ndarray) -> np.ndarray:
    return np.array([STATUS.index(Status(one)) for one in status], np.int8)


def stretch(
    problems: list[LQR],
    seen: list[np.ndarray],
    K: np.ndarray,
    status: np.ndarray,
    iterations: np.ndarray,
    *,
    rate: float,
    done: int,
    upto: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K (r, m, n), status and iterations of all runs after `upto` updates; those that had diverged by `done` stay as they are."""
    K, status, iterations = K.copy(), status.copy(), iterations.copy()
    alive = np.flatnonzero(status == Status.finished)
    if len(alive):
        batch = train_lqr_batch(
            [problems[r] for r in alive],
            [seen[r] for r in alive],
            learning_rate=rate,
            iterations=upto - done,
            K0=K[alive],
            record_every=min(CHUNK, upto - done),
        )
        K[alive], status[alive], iterations[alive] = batch.K, batch.status, done + batch.iterations
    return K, status, iterations
