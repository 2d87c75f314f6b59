"""The three objectives of a network experiment as one program, and optimisers of each run's own."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

import offspan
from offspan.experiments import network
from offspan.experiments.registry import load_preset


def small(name, **update) -> Any:
    spec = load_preset(name)
    return spec.model_copy(update={"iterations": 60, "seeds": [0, 1, 2], "baseline_seeds": [3, 4], "evaluate_every": 10, **update})


@pytest.mark.parametrize("name", ["pendulum", "quadcopter-below"])
def test_together_is_each_objective_alone(name):
    """Trained as one program or as three, the controllers differ by rounding; the costs that are recorded are those of S, S and U."""
    spec = small(name, precision="float64", iterations=8, evaluate_every=4)  # soon after, rounding grows in a pendulum
    with jax.enable_x64(True):
        whole = network.run_task(spec.model_copy(update={"together": True}), network.TOGETHER, {}, None, lambda *_: None)
        results = {task.name: network.run_task(spec, task.name, {}, None, lambda *_: None) for task in network.tasks(spec)}
        alone = network.to_dataset(spec, results)
        together = network.to_dataset(spec.model_copy(update={"together": True}), {network.TOGETHER: whole})
    for objective in network.OBJECTIVES:
        moved = 0.0
        for layer in range(spec.depth):
            one, other = (result[f"{objective}_W{layer}"].values for result in (alone, together))
            np.testing.assert_allclose(other, one, rtol=1e-7, atol=1e-9)
            start = spec.first_controller(spec.make_problem(), network.seeds_of(spec, objective)[0])
            moved = max(moved, np.abs(one[0] - np.asarray(getattr(start, "net", start).layers[layer][0])).max())
        assert moved > 1e-5
        curves = [result[f"{objective}_curve"].values for result in (alone, together)]
        assert np.isfinite(curves[0]).all()
        np.testing.assert_allclose(curves[1], curves[0], rtol=1e-9)
    np.testing.assert_allclose(together.normalized_cost, alone.normalized_cost, rtol=1e-6)


def test_a_run_that_diverges_leaves_the_others_alone():
    """To rounding, since another learning rate is another program."""
    spec = small("pendulum", together=True, precision="float64", iterations=30)
    wild = spec.model_copy(update={"minimal_cost": spec.minimal_cost.model_copy(update={"learning_rate": 1e8})})
    calm, other = (network.run_task(one, network.TOGETHER, {}, None, lambda *_: None) for one in (spec, wild))
    assert (other["codes"][-2:] == int(offspan.Status.diverged)).all()
    for name in ("weights.0", "cost"):
        assert calm[name].shape == other[name].shape
        assert np.isfinite(calm[name][:5]).all()
        np.testing.assert_allclose(calm[name][:5], other[name][:5], rtol=1e-6, atol=1e-9)


def test_each_run_has_its_own_optimizer():
    """Against separate trainings, one an optimiser; a third one, with a state of another shape, is there as well."""
    problem, seen = offspan.shift(3, horizon=3), offspan.basis(3, 1)
    zero = offspan.Linear(np.zeros((3, 3)))
    own = [optax.sgd(0.01), optax.adam(0.02), optax.sgd(0.01, momentum=0.9), optax.adam(0.02)]
    batch = offspan.train_batch(problem, [zero] * 4, seen, optimizer=own, iterations=30)
    for r, optimizer in enumerate(own):
        alone = offspan.train(problem, zero, seen, optimizer=optimizer, iterations=30)
        np.testing.assert_allclose(batch.controllers[r].K, alone.controller.K, rtol=1e-10, atol=1e-12)
    assert np.abs(batch.controllers[0].K - batch.controllers[1].K).max() > 1e-3
    np.testing.assert_array_equal(batch.controllers[1].K, batch.controllers[3].K)


def test_a_list_of_optimizers_that_does_not_fit():
    zero = offspan.Linear(np.zeros((2, 2)))
    for wrong in ([optax.sgd(0.1)], [optax.sgd(0.1)] * 3):
        with pytest.raises(offspan.OffspanError, match=r"`optimizer` must be one optax optimiser, or a list of one for each of the 2 runs"):
            offspan.train_batch(offspan.shift(2, horizon=2), [zero] * 2, offspan.basis(2, 1), optimizer=wrong, iterations=1)


def test_the_words_of_a_spec_that_cannot_be_together():
    spec = load_preset("pendulum")
    with pytest.raises(ValueError, match="leave one of them out"):
        network.NetworkSpec.model_validate({**spec.model_dump(), "together": True, "seeds_per_task": 2})
    with pytest.raises(offspan.OffspanError, match="no objectives to train together"):
        load_preset("lqr").as_one_program()
    assert spec.as_one_program().name == "pendulum-together"
    assert spec.as_one_program().digest() != spec.digest()


def test_one_program_that_is_to_be_split_is_refused_before_it_is_trained():
    """Whichever of the two was asked for first."""
    spec = load_preset("pendulum")
    for asked in (lambda: spec.with_seeds_per_task(1).as_one_program(), lambda: spec.as_one_program().with_seeds_per_task(1)):
        with pytest.raises(offspan.OffspanError, match="`together` makes one task of everything, and `seeds_per_task` makes many"):
            asked()
