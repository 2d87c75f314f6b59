"""Against the numbers of the paper's official PyTorch code (tests/data/README.md)."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import offspan
from tests.test_controllers import plain_network

DATA = Path(__file__).parent / "data"
LQR_CASES = json.loads((DATA / "lqr.json").read_text())


@pytest.mark.parametrize("case", LQR_CASES, ids=lambda case: f"{case['system']}-{case['n_train']}")
def test_lqr_training_gives_the_official_numbers(case):
    problem = offspan.LQR(case["A"], case["B"], case["Q"], horizon=case["H"])
    seen, unseen = offspan.basis(case["D"], case["n_train"]), offspan.basis(case["D"])[case["n_train"] :]
    first = np.array(case["first_gradient"])
    gradient = offspan.lqr_gradient(problem, jnp.zeros_like(problem.A), seen)
    assert np.linalg.norm(gradient - first) < 1e-10 * np.linalg.norm(first)
    run = offspan.train_lqr(problem, seen, learning_rate=case["learning_rate"], iterations=case["iterations"])
    K_no_ext = offspan.nonextrapolating_controller(problem, seen)
    ours = {
        "K_final": run.K,
        "train_cost": offspan.cost(problem, offspan.Linear(run.K), seen),
        "unseen_cost": offspan.cost(problem, offspan.Linear(run.K), unseen),
        "unseen_cost_no_ext": offspan.cost(problem, offspan.Linear(K_no_ext), unseen),
        "min_unseen_cost": offspan.minimal_cost(problem, unseen),
        "normalized_optimality": offspan.normalized_optimality(problem, run.K, seen),
        "normalized_cost": offspan.normalized_cost(problem, run.K, seen),
    }
    for name, value in ours.items():
        np.testing.assert_allclose(value, case[name], rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("file", ["pendulum", "quadcopter"])
def test_the_official_networks_can_be_taken_over(file):
    for case in json.loads((DATA / f"{file}.json").read_text()):
        layers = [(np.array(layer["weight"]), np.array(layer["bias"])) for layer in case["layers"]]
        network = offspan.MLP(layers)
        states = np.array(case["states"]).reshape(-1, layers[0][0].shape[1])[::20]
        assert len(states) > 5
        for x in states:
            np.testing.assert_allclose(network(jnp.asarray(x)), plain_network(layers, x), rtol=1e-12, atol=1e-12)
