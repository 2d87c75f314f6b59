"""Ways of training as an experiment: its result holds what plain runs give, for exact, noisy, cut, discounted and sampled training."""

import jax
import numpy as np
import optax
import pytest

import offspan
from offspan.experiments.registry import load_preset, load_spec
from offspan.experiments.run import run
from offspan.report.results import report
from offspan.report.tables import latex_table

SPEC = """
kind = "ways"
systems = ["identity", "gaussian"]
dim = 3
horizon = [4]
seeds = [5, 6, 7]
iterations = 40
record_every = 10
compare_by = "{by}"
[[ways]]
name = "exact"
learning_rate = 1e-2
[[ways]]
name = "noisy and cut"
learning_rate = 1e-2
clip = 0.5
process_noise = 0.1
[[ways]]
name = "discounted"
learning_rate = 1e-2
discounts = [0.5, 1.0]
[[ways]]
name = "two points"
learning_rate = 1e-3
gradient = "two-point"
[[ways]]
name = "reinforce"
learning_rate = 1e-3
gradient = "reinforce"
"""


@pytest.fixture(scope="module")
def ways(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ways")
    (folder / "ways.toml").write_text(SPEC.format(by="horizon"))
    spec = load_spec(folder / "ways.toml")
    return spec, run(spec, folder, lambda share: None)


def test_a_result_holds_what_plain_runs_give(ways):
    _, result = ways
    seen = offspan.basis(3, 1)
    problems = {"identity": offspan.identity(3, horizon=4), "gaussian": offspan.gaussian(jax.random.key(6), 3, horizon=4)}
    for system, problem in problems.items():
        at = {"system": system, "seed": 6, "horizon": 4}
        K = {
            "exact": offspan.train_lqr(problem, seen, learning_rate=1e-2, iterations=40).K,
            "noisy and cut": offspan.train_lqr(offspan.Noisy(problem, process=0.1), seen, learning_rate=1e-2, iterations=40, clip=0.5).K,
            "discounted": offspan.train(
                problem, offspan.Linear(np.zeros((3, 3))), seen, optimizer=optax.sgd(1e-2), iterations=40, discounts=(0.5, 1.0)
            ).K,
        }
        for way, gain in K.items():
            found = result.sel(way=way, **at)
            np.testing.assert_allclose(found.cost, offspan.cost(problem, offspan.Linear(gain), seen), rtol=1e-9)
            np.testing.assert_allclose(found.normalized_optimality, offspan.normalized_optimality(problem, gain, seen), rtol=1e-9)
            np.testing.assert_allclose(found.normalized_cost, offspan.normalized_cost(problem, gain, seen), rtol=1e-9)
        np.testing.assert_allclose(result.least_cost.sel(way="exact", **at), offspan.minimal_cost(problem, seen))
        free = float(offspan.cost(problem, offspan.Linear(np.zeros((3, 3))), seen))
        sampled = result.cost.sel(way=["two points", "reinforce"], **at)
        assert np.all(sampled < 0.99 * free)
    assert result.rollouts_an_update.values.tolist() == [1, 1, 1, 16, 8]


def test_a_run_that_was_stopped_ends_as_one_that_was_not(ways, tmp_path):
    spec, expected = ways
    for share in (0.3, 0.9):

        def stop_at(done, share=share):
            if done > share:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            run(spec, tmp_path, stop_at)
    result = run(spec, tmp_path, lambda share: None)
    for name in expected:
        np.testing.assert_array_equal(result[name].values, expected[name].values, err_msg=str(name))


@pytest.mark.parametrize("by", ["horizon", "rollouts", "noise"])
def test_every_figure_is_drawn_and_its_table_is_latex(ways, by):
    made = report(ways[1].assign_attrs(compare_by=by))
    ((figure, data),) = made.figures().values()
    assert len(figure.axes) >= 2
    assert len(data) == 5 * 2
    assert latex_table(made.tables["table"]).isascii()
    assert set(made.captions) == {by}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('"two-point"', '"three-point"'),
        ('name = "exact"', 'name = "noisy and cut"'),
        ('"gaussian"', '"gausian"'),
        ("dim = 3", "dim = 1"),
        ('gradient = "reinforce"', 'gradient = "reinforce"\nrollouts = 1'),
    ],
)
def test_a_mistake_in_a_spec_is_one_sentence(tmp_path, wrong, said):
    (tmp_path / "ways.toml").write_text(SPEC.format(by="noise").replace(wrong, said))
    with pytest.raises(offspan.OffspanError, match=r"ways\.toml"):
        load_spec(tmp_path / "ways.toml")


@pytest.mark.parametrize("name", ["lqr-noise", "lqr-horizons", "lqr-sampled"])
def test_quick_presets_have_fewer_seeds_and_say_so(name):
    quick = load_preset(name).as_quick()
    assert quick.quick
    assert 3 <= len(quick.seeds) <= 10


NETWORKS = """
kind = "network_ways"
problem = "pendulum"
horizon = [8, 12]
seeds = [3, 4]
baseline_seeds = [0, 1]
iterations = 30
evaluate_every = 10
width = 4
depth = 2
seen_states = [[2.6], [3.6]]
unseen_states = [[0.0], [1.5]]
compare_by = "{by}"
ways = [
  {{ name = "exact", learning_rate = 1e-2 }},
  {{ name = "short first", learning_rate = 1e-2, clip = 0.5, horizons = [4, 10] }},
  {{ name = "noise", learning_rate = 1e-2, process_noise = 0.1 }},
  {{ name = "two points", learning_rate = 1e-3, gradient = "two-point", optimizer = "gradient-descent" }},
  {{ name = "too fast", learning_rate = 1e12, optimizer = "gradient-descent" }},
]
minimal_cost = {{ name = "on U", learning_rate = 1e-2 }}
non_extrapolating = {{ name = "down", learning_rate = 1e-2, targets = [[0.0]] }}
"""


@pytest.fixture(scope="module")
def network_ways(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network-ways")
    (folder / "pendulum.toml").write_text(NETWORKS.format(by="horizon"))
    spec = load_spec(folder / "pendulum.toml")
    return spec, run(spec, folder, lambda share: None)


def test_ways_of_networks_hold_what_plain_runs_give(network_ways):
    spec, result = network_ways
    seen, unseen, _ = spec.states()
    costs = {}
    for H, stages in {8: (4, 8), 12: (4, 10, 12)}.items():
        problem = offspan.Pendulum(horizon=H)
        start = offspan.MLP.init(jax.random.key(4), 2, 1, width=4, depth=2)
        cut = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2))
        trained = {
            "exact": offspan.train(problem, start, seen, optimizer=optax.adam(1e-2), iterations=30),
            "short first": offspan.train(problem, start, seen, optimizer=cut, iterations=30, horizons=stages),
        }
        for way, one in trained.items():
            found = result.sel(way=way, horizon=H, seed=4)
            np.testing.assert_allclose(found.cost, offspan.cost(problem, one.controller, seen), rtol=1e-6)
            costs[way, H] = float(offspan.cost(problem, one.controller, unseen))
            np.testing.assert_allclose(found.unseen_cost, costs[way, H], rtol=1e-6)
        least, baseline = result.least_cost.sel(horizon=H).item(), result.baseline_cost.sel(horizon=H).item()
        begin = [offspan.MLP.init(jax.random.key(seed), 2, 1, width=4, depth=2) for seed in (0, 1)]
        loss = offspan.adversarial_objective(unseen, np.zeros_like(unseen))
        how = {"optimizer": optax.adam(1e-2), "iterations": 30}
        on_unseen = [offspan.train(problem, one, unseen, **how).controller for one in begin]
        adversarial = [offspan.train(problem, one, seen, loss=loss, **how).controller for one in begin]
        cheapest = min(adversarial, key=lambda one: float(offspan.cost(problem, one, seen)))
        assert baseline == pytest.approx(float(offspan.cost(problem, cheapest, unseen)), rel=1e-6)
        assert least == pytest.approx(min(float(offspan.cost(problem, one, unseen)) for one in on_unseen), rel=1e-6)
        expected = (costs["exact", H] - least) / (baseline - least)
        assert result.normalized_cost.sel(way="exact", horizon=H, seed=4).item() == pytest.approx(expected, rel=1e-5)
    assert np.all(result.status.sel(way="too fast") == offspan.Status.diverged)
    assert np.all(np.isinf(result.cost.sel(way="too fast")))
    assert len(np.unique(result.cost.sel(way=["exact", "noise", "two points"], horizon=8, seed=3))) == 3


@pytest.mark.parametrize("by", ["horizon", "noise"])
def test_the_report_of_ways_of_networks(network_ways, by):
    made = report(network_ways[1].assign_attrs(compare_by=by))
    ((figure, data),) = made.figures().values()
    assert len(figure.axes) == 2
    assert len(data) == 5 * 2
    assert latex_table(made.tables["table"]).isascii()
    by_way = data.set_index(["way", "horizon"])
    assert by_way.trained["too fast", 8] == 0
    assert by_way.diverged["too fast", 8] == 2
    lowest = network_ways[1].cost.sel(horizon=8).min()
    assert by_way.trained["exact", 8] == int((network_ways[1].cost.sel(way="exact", horizon=8) <= 2 * lowest).sum())


@pytest.mark.parametrize(
    ("wrong", "said", "message"),
    [
        ("horizon = [8, 12]", "horizon = [8, 12]\nsettings = { horizon = 9 }", "settings.horizon"),
        ("[[2.6], [3.6]]", "[[2.6, 0.0, 0.0]]", "length 3"),
        ("targets = [[0.0]]", "targets = [[0.0], [0.0], [0.0]]", "targets"),
        ('name = "noise"', 'name = "exact"', "twice"),
        ("targets = [[0.0]]", "targets = [[0.0]], process_noise = 0.1", "without noise"),
        ("horizons = [4, 10]", "horizons = [4, 10], discounts = [0.5, 1.0]", "give one of them"),
    ],
)
def test_a_mistake_in_ways_of_networks_is_one_sentence(tmp_path, wrong, said, message):
    (tmp_path / "wrong.toml").write_text(NETWORKS.format(by="noise").replace(wrong, said))
    with pytest.raises(offspan.OffspanError, match=rf"wrong\.toml.*{message}"):
        load_spec(tmp_path / "wrong.toml")
