"""Against the numbers of the paper's official PyTorch code (tests/data/README.md)."""

import json
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
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


NEURAL_CASES = [case for file in ("pendulum", "quadcopter") for case in json.loads((DATA / f"{file}.json").read_text())]


@pytest.mark.parametrize("case", NEURAL_CASES, ids=lambda case: f"{case['problem']}-{case['optimizer']}")
def test_networks_move_cost_and_learn_as_in_the_official_code(case):
    """States, mean cost and every layer's gradient; the cost before each of ten optimiser steps, and the layers after the last."""
    H = case["H"]
    make = {"pendulum": offspan.Pendulum, "quadcopter": offspan.Quadcopter}[case["problem"]]
    problem = make(horizon=H, cost_scale=1 / (H + 1))  # the official code divides by the number of terms
    network = offspan.MLP([(np.array(layer["weight"]), np.array(layer["bias"])) for layer in case["layers"]])
    controller = network if problem.control_bounds is None else offspan.Bounded(network, *problem.control_bounds)
    x0s = jnp.asarray(case["initial_states"])
    states = np.stack([offspan.rollout(problem, controller, x0).states for x0 in x0s])
    np.testing.assert_allclose(states, case["states"], rtol=1e-9, atol=1e-9)

    J, gradient = eqx.filter_value_and_grad(lambda controller: offspan.cost(problem, controller, x0s))(controller)
    np.testing.assert_allclose(J, case["mean_cost"], rtol=1e-8)
    same_layers(gradient, case["gradient"], rtol=1e-8)

    loss = None
    if "adversarial_targets" in case:
        adversary = case["adversarial_initial_states"], case["adversarial_targets"]
        loss = offspan.adversarial_objective(*map(np.array, adversary), coefficient=case["adversarial_coefficient"])
    optimizer = {"sgd": optax.sgd, "adam": optax.adam}[case["optimizer"]](case["learning_rate"])
    run = offspan.train(problem, controller, x0s, optimizer=optimizer, iterations=len(case["cost_per_step"]), loss=loss)
    np.testing.assert_allclose(run.cost, case["cost_per_step"], rtol=1e-6)
    same_layers(run.controller, case["layers_after"], rtol=1e-6)
    final = [offspan.rollout(problem, run.controller, x0).states[-1] for x0 in x0s]
    np.testing.assert_allclose(final, case["final_states_after"], rtol=1e-6, atol=1e-6)


def same_layers(controller, expected, rtol):
    network = controller.net if isinstance(controller, offspan.Bounded) else controller
    assert isinstance(network, offspan.MLP)
    for (weight, bias), layer in zip(network.layers, expected, strict=True):
        for ours, theirs in ((weight, layer["weight"]), (bias, layer["bias"])):
            scale = np.abs(theirs).max()
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("file", ["pendulum", "quadcopter"])
def test_the_official_networks_can_be_taken_over(file):
    for case in json.loads((DATA / f"{file}.json").read_text()):
        layers = [(np.array(layer["weight"]), np.array(layer["bias"])) for layer in case["layers"]]
        network = offspan.MLP(layers)
        states = np.array(case["states"]).reshape(-1, layers[0][0].shape[1])[::20]
        assert len(states) > 5
        for x in states:
            np.testing.assert_allclose(network(jnp.asarray(x)), plain_network(layers, x), rtol=1e-12, atol=1e-12)
