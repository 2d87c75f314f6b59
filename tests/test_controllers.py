import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import offspan
from tests.systems import seeds


def plain_network(layers, x):
    """The network as a loop over its rows."""
    for i, (W, b) in enumerate(layers):
        x = np.array([sum(w * v for w, v in zip(row, x, strict=True)) + bias for row, bias in zip(W, b, strict=True)])
        if i + 1 < len(layers):
            x = np.maximum(x, 0.0)
    return x


def test_linear_and_the_other_sign_convention():
    K, x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), jnp.array([1.0, -1.0])
    np.testing.assert_array_equal(offspan.Linear(K)(x), [-1.0, -1.0, -1.0])
    np.testing.assert_array_equal(offspan.Linear.from_python_control(K)(x), [1.0, 1.0, 1.0])


@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(1, 5))
def test_mlp_agrees_with_a_plain_network(seed, n, m, width, depth):
    network = offspan.MLP.init(jax.random.key(seed), n, m, width=width, depth=depth)
    assert len(network.layers) == depth
    layers = [(np.asarray(W), np.asarray(b)) for W, b in network.layers]
    x = np.random.default_rng(seed).normal(size=n)
    np.testing.assert_allclose(network(jnp.asarray(x)), plain_network(layers, x), atol=1e-12)


def test_mlp_initialisation_is_uniform_within_one_over_root_fan_in():
    """PyTorch's default: weights and biases uniform in ±1/√fan_in, so variance 1/(3 fan_in)."""
    network = offspan.MLP.init(jax.random.key(0), 10, 20, width=400, depth=3)
    for (W, b), fan_in in zip(network.layers, (10, 400, 400), strict=True):
        for entries in (W, b):
            bound = fan_in**-0.5
            assert jnp.abs(entries).max() <= bound
            assert jnp.abs(entries).max() > (1 - 10 / entries.size) * bound
            # The fourth moment of a uniform gives the variance's standard error: (1/5 − 1/9)/N in units of the bound⁴.
            assert abs(entries.var() / bound**2 - 1 / 3) < 5 * ((1 / 5 - 1 / 9) / entries.size) ** 0.5 + 1 / entries.size
    assert [W.shape for W, _ in network.layers] == [(400, 10), (400, 400), (20, 400)]


def test_bounded_stays_within_its_bounds_and_reaches_them():
    net = offspan.Linear(np.array([[1.0], [1.0]]))
    controller = offspan.Bounded(net, low=[0.0, -2.0], high=[10.0, 2.0])
    np.testing.assert_allclose(controller(jnp.array([0.0])), [5.0, 0.0])
    np.testing.assert_allclose(controller(jnp.array([100.0])), [10.0, 2.0])
    np.testing.assert_allclose(controller(jnp.array([-100.0])), [0.0, -2.0], atol=1e-12)
    np.testing.assert_allclose(controller(jnp.array([0.3])), [5 * (np.tanh(0.3) + 1), 2 * np.tanh(0.3)])


def test_no_optimiser_moves_the_bounds():
    problem = offspan.LQR([[1.0]], horizon=2)
    net = offspan.Linear([[0.5]])
    run = offspan.train(problem, offspan.Bounded(net, -1.0, 1.0), np.ones((1, 1)), optimizer=optax.adamw(0.1), iterations=5)
    assert run.controller.low == (-1.0,)
    assert run.controller.net.K != net.K


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_saved_controller_comes_back_to_the_bit(tmp_path, kind, bounded, dtype):
    net = offspan.Linear(np.ones((2, 3)) / 3) if kind == "linear" else offspan.MLP.init(jax.random.key(1), 3, 2, width=4)
    net = jax.tree.map(lambda a: a.astype(dtype), net)
    controller = offspan.Bounded(net, [-1.0, 0.1], 2.0) if bounded else net
    path = tmp_path / "controller.npz"
    offspan.save_controller(controller, path)
    assert eqx.tree_equal(offspan.load_controller(path), controller)
    assert [p.name for p in tmp_path.iterdir()] == ["controller.npz"]


def test_a_file_cut_short_is_told_and_saving_over_a_file_that_cannot_be_written_keeps_it(tmp_path, monkeypatch):
    path = tmp_path / "controller.npz"
    offspan.save_controller(offspan.Linear([[1.0]]), path)
    whole = path.read_bytes()

    def full_disk(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="No space left"):
        offspan.save_controller(offspan.Linear([[2.0]]), path)
    assert path.read_bytes() == whole
    assert len(list(tmp_path.iterdir())) == 1
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="not a whole controller file"):
            offspan.load_controller(path)


def test_a_pickle_in_a_controller_file_is_not_run(tmp_path):
    """An object array unpickles, and so runs code, when it is loaded; it must be refused."""

    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    path = tmp_path / "controller.npz"
    np.savez(path, header=np.array([Trap()], dtype=object), K=np.ones((1, 1)))
    with pytest.raises(ValueError, match="not a whole controller file"):
        offspan.load_controller(path)
    assert not tmp_path.joinpath("sprung").exists()


class Sine(eqx.Module):
    """u = W sin(x): a module of a user's own, with an integer array that is no weight."""

    W: jax.Array
    order: jax.Array

    def __call__(self, x):
        return self.W @ jnp.sin(x) * self.order[0]


@pytest.mark.parametrize("bounded", [False, True])
def test_a_module_of_ones_own_is_bounded_trained_saved_and_loaded(tmp_path, bounded):
    own = Sine(jnp.full((1, 2), 0.1), jnp.array([1]))
    controller = offspan.Bounded(own, -2.0, 2.0) if bounded else own
    run = offspan.train(offspan.Pendulum(horizon=3), controller, np.array([[2.6, 0.0]]), optimizer=optax.sgd(0.1), iterations=3)
    offspan.save_controller(run.controller, tmp_path / "own.npz")
    again = offspan.load_controller(tmp_path / "own.npz", like=controller)
    assert eqx.tree_equal(again, run.controller)
    assert not eqx.tree_equal(again, controller)
    with pytest.raises(offspan.OffspanError, match="as `like`"):
        offspan.load_controller(tmp_path / "own.npz")
    with pytest.raises(offspan.OffspanError, match="other shapes"):
        offspan.load_controller(tmp_path / "own.npz", like=Sine(jnp.zeros((1, 3)), jnp.array([1])))
