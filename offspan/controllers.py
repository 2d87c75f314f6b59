"""Controllers u = π(x): values that are functions of one state. Any function of one state can stand in their place."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from numpy.typing import ArrayLike

from offspan import host
from offspan.errors import OffspanError, as_bounds, as_count, as_floats, as_key, check_known, check_not_frozen, is_concrete
from offspan.files import atomic_write, excerpt, read_arrays


class Linear(eqx.Module):
    """u = K x  [R24, sec:prelim:policy_grad_lqr].

    >>> import jax.numpy as jnp, offspan
    >>> offspan.Linear([[1.0, 2.0]])(jnp.array([3.0, 4.0])).tolist()
    [11.0]
    """

    K: Float[Array, "m n"]

    def __init__(self, K: ArrayLike):
        self.K = as_floats("Linear", "K", K, shape=(None, None), meaning="shape (m, n): one row a control, one column a state")

    @classmethod
    def from_python_control(cls, K: ArrayLike) -> "Linear":
        """The controller of a gain from python-control (`lqr`, `dlqr`, `place`), whose law is u = −K x."""
        return cls(-cls(K).K)

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "m"]:
        return self.K @ x


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "elu": jax.nn.elu,
    "leaky-relu": jax.nn.leaky_relu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "gelu": lambda z: jax.nn.gelu(z, approximate=False),  # as PyTorch's default
}


class MLP(eqx.Module):
    """u = W_L σ(… σ(W_1 x + b_1) …) + b_L; `layers` = [(W, b), …], W of shape (out, in).

    σ is the `activation`, "relu" unless another is named (`ACTIVATIONS` has them). The paper's controllers have 4 layers, 50 wide
    (`MLP.init`)  [R24, app:experiments:details:nn:pend].

    >>> import jax.numpy as jnp, offspan
    >>> absolute = offspan.MLP([([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, 1.0]], [0.0])])  # σ(x) + σ(−x)
    >>> absolute(jnp.array([-3.0])).tolist()
    [3.0]
    """

    layers: tuple[tuple[Float[Array, "out in"], Float[Array, "out"]], ...]
    activation: str = eqx.field(static=True)

    def __init__(self, layers: Sequence[tuple[ArrayLike, ArrayLike]], activation: str = "relu"):
        check_known("MLP: there is no `activation`", activation, ACTIVATIONS)
        self.activation = activation
        if (
            not isinstance(layers, Sequence)
            or not layers
            or not all(isinstance(layer, tuple | list) and len(layer) == 2 for layer in layers)
        ):
            raise OffspanError("MLP: `layers` must be a list of pairs, [(W, b), …] with at least one layer.")
        checked = []
        for i, (W, b) in enumerate(layers):
            width = checked[-1][0].shape[0] if checked else None
            meaning = f"shape (out, {width if checked else 'in'})" + (f", as layer {i - 1} has {width} outputs" if checked else "")
            W = as_floats("MLP", f"layers[{i}] W", W, shape=(None, width), meaning=meaning)
            b = as_floats("MLP", f"layers[{i}] b", b, shape=W.shape[:1], meaning=f"shape {W.shape[:1]}, one number for each row of W")
            checked.append((W, b))
        self.layers = tuple(checked)

    @classmethod
    def init(cls, key: PRNGKeyArray, in_dim: int, out_dim: int, width: int = 50, depth: int = 4, activation: str = "relu") -> "MLP":
        """`depth` layers (`depth` − 1 hidden ones), weights and biases uniform in ±1/√fan_in: PyTorch's default, which [R24] uses."""
        given = {"in_dim": in_dim, "out_dim": out_dim, "width": width, "depth": depth}
        n, m, width, depth = (as_count("MLP.init", name, value, least=1) for name, value in given.items())
        drawn = eqx.nn.MLP(n, m, width, depth - 1, key=as_key("MLP.init", key))
        return cls([(layer.weight, cast(Array, layer.bias)) for layer in drawn.layers], activation)

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "m"]:
        *hidden, (W, b) = self.layers
        for W_hidden, b_hidden in hidden:
            x = ACTIVATIONS[self.activation](W_hidden @ x + b_hidden)
        return W @ x + b


class Bounded(eqx.Module):
    """u = (1 − τ) low + τ high with τ = (tanh(net(x)) + 1)/2: controls that stay in [low, high], up to rounding.

    The bounds, a number or one for each control, are constants: no optimiser moves them. With low = 0 and high the motors' largest speed it
    is u = (tanh(z) + 1) high/2, z = net(x), as in the paper  [R24, app:experiments:details:nn:quad].

    >>> import jax.numpy as jnp, offspan
    >>> offspan.Bounded(offspan.Linear([[0.0], [100.0]]), 0.0, 8.0)(jnp.array([1.0])).tolist()  # halfway, and at the end
    [4.0, 8.0]
    """

    net: Callable[[Array], Array]
    low: tuple[float, ...] = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, net: Callable[[Array], Array], low: float | Sequence[float], high: float | Sequence[float]):
        if not callable(net):
            raise OffspanError("Bounded: `net` is not a function of the state; for a matrix K pass `Linear(K)`.")
        self.net = net
        self.low, self.high = as_bounds("Bounded", (low, high))

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "m"]:
        z = self.net(x)
        if len(self.low) not in (1, z.size):
            raise OffspanError(f"Bounded: there are bounds for {len(self.low)} controls, but the network has {z.size} outputs.")
        low, high = jnp.asarray(self.low, z.dtype), jnp.asarray(self.high, z.dtype)
        tau = (jnp.tanh(z) + 1) / 2
        return (1 - tau) * low + tau * high


class Observed(eqx.Module):
    """u = policy(observe(x)): a policy that sees observations in place of states, as one from a simulator does  [beyond R24].

    >>> import jax.numpy as jnp, offspan
    >>> by_cosine = offspan.Observed(offspan.Linear([[2.0]]), lambda x: jnp.cos(x[:1]))
    >>> by_cosine(jnp.array([0.0, 5.0])).tolist()
    [2.0]
    """

    policy: Callable[[Array], Array]
    observe: Callable[[Array], Array]

    def __init__(self, policy: Callable[[Array], Array], observe: Callable[[Array], Array]):
        for name, one in {"policy": policy, "observe": observe}.items():
            if not callable(one):
                raise OffspanError(f"Observed: `{name}` is {one!r}, but must be a function.")
            check_not_frozen("Observed", f"`{name}`", one)
        self.policy = policy
        self.observe = cast(Any, observe if isinstance(observe, eqx.Module) else jax.tree_util.Partial(observe))

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "m"]:
        return self.policy(self.observe(x))


class HostController(eqx.Module):
    """u = function(x) for any Python function of NumPy arrays, called with batches: (b, n) ↦ (b, m)  [beyond R24].

    A model of another library, say: `HostController(lambda X: model.predict(X, deterministic=True)[0], control_dim=1)`. Whatever needs
    no derivative takes it, and it is not trained. With `batched=False` the function takes one state (n,) at a time.

    >>> import numpy as np, offspan
    >>> bang = offspan.HostController(lambda X: -np.sign(X[:, :1]), control_dim=1)
    >>> offspan.rollout(offspan.identity(1, horizon=3), bang, np.array([2.5])).states[:, 0].tolist()
    [2.5, 1.5, 0.5, -0.5]
    """

    function: Callable[..., Any]
    control_dim: int = eqx.field(static=True)
    on_host: ClassVar[bool] = True

    def __init__(self, function: Callable[..., Any], *, control_dim: int, batched: bool = True):
        if not callable(function):
            raise OffspanError(f"HostController: `function` is {function!r}, but must be a function of states.")
        self.control_dim = as_count("HostController", "control_dim", control_dim, least=1)
        each = function if batched else lambda X: np.stack([np.asarray(function(x), float).reshape(-1) for x in X])
        self.function = cast(Any, jax.tree_util.Partial(each))

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "m"]:
        return host.call("HostController: `function`", cast(Any, self.function).func, (self.control_dim,), x)


def flat_weights(controller: Callable[[Array], Array]) -> tuple[Float[Array, "d"], Callable[[Array], Any]]:
    """The floating-point arrays of a controller as one vector, and the controller as a function of it."""
    weights, structure = eqx.partition(controller, eqx.is_inexact_array)
    w, unravel = ravel_pytree(weights)
    return w, lambda w: eqx.combine(unravel(w), structure)


def stack_weights(controllers: Sequence[Any]) -> tuple[PyTree, PyTree]:
    """The floating-point arrays of controllers that differ in nothing else, with a leading axis of runs; and the rest, of one of them."""
    parts = [eqx.partition(controller, eqx.is_inexact_array) for controller in controllers]
    return jax.tree.map(_stacked, *(weights for weights, _ in parts)), parts[0][1]


def _stacked(*leaves: Array) -> Array:
    """By NumPy where there are values: jax would compile a program of as many arguments, which takes half a minute for two thousand."""
    return jnp.asarray(np.stack(leaves)) if all(map(is_concrete, leaves)) else jnp.stack(leaves)


def unstack_weights(weights: PyTree, structure: PyTree) -> list[Any]:
    """The controllers whose `stack_weights` these are."""
    runs = jax.tree.leaves(weights)[0].shape[0]
    return [eqx.combine(jax.tree.map(lambda leaf, r=r: jnp.asarray(leaf[r]), weights), structure) for r in range(runs)]


FORMAT = "offspan-controller-1"


def save_controller(controller: Callable[[Array], Array], path: str | os.PathLike) -> None:
    """Writes an .npz file of plain arrays and one JSON header, atomically; nothing in it can run code.

    An equinox module of your own is saved by its arrays; to load it, pass one of the same structure as `like`.

    >>> import tempfile, numpy as np, offspan
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     offspan.save_controller(offspan.Linear([[0.1]]), f"{folder}/pi.npz")
    ...     with np.load(f"{folder}/pi.npz") as file:
    ...         file["K"].tolist(), str(file["header"])
    ([[0.1]], '{"format": "offspan-controller-1"}')
    """
    if isinstance(controller, str | os.PathLike):
        raise OffspanError("save_controller: the controller comes first, and then the path: save_controller(controller, path).")
    header: dict[str, Any] = {"format": FORMAT}
    net = controller
    if isinstance(controller, Bounded):
        header["bounds"] = [controller.low, controller.high]
        net = controller.net
    if isinstance(net, Linear):
        arrays = {"K": np.asarray(net.K)}
    elif isinstance(net, MLP):
        header |= {} if net.activation == "relu" else {"activation": net.activation}
        arrays = {
            f"{letter}{i}": np.asarray(array) for i, layer in enumerate(net.layers) for letter, array in zip("Wb", layer, strict=True)
        }
    else:
        arrays = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(eqx.filter(net, eqx.is_array)))}
        if not arrays:
            raise OffspanError(
                f"save_controller: `controller` (a {type(net).__name__}) has no arrays to save; pass a Linear, an MLP or a module."
            )

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)

    atomic_write(Path(path), write)


def load_controller(path: str | os.PathLike, *, like: Any = None) -> Any:
    """Reads what `save_controller` wrote, without unpickling, in jax's precision; `like` gives the structure of a module of your own.

    >>> import tempfile, jax.numpy as jnp, offspan
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     offspan.save_controller(offspan.Bounded(offspan.Linear([[0.0]]), -1.0, 2.0), f"{folder}/pi.npz")
    ...     offspan.load_controller(f"{folder}/pi.npz")(jnp.array([7.0])).tolist()
    [0.5]
    """
    path = Path(path)
    try:
        arrays = read_arrays(path)
        header = _header(arrays.pop("header", np.array("")))
        net = _network(arrays, header.get("activation", "relu"), like.net if isinstance(like, Bounded) else like)
        return Bounded(net, *header["bounds"]) if "bounds" in header else net
    except OffspanError as error:
        raise OffspanError(
            f"load_controller: {str(path)!r} is not a whole controller file ({excerpt(error)}); write it again with `save_controller`."
        ) from error


def _header(stored: np.ndarray) -> dict[str, Any]:
    try:
        header = json.loads(str(stored))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise OffspanError(f"its header is not that of the format {FORMAT!r}")
    if not isinstance(header.get("bounds", [0, 0]), list) or len(header.get("bounds", [0, 0])) != 2:
        raise OffspanError("its bounds are not a pair")
    return header


def _network(arrays: dict[str, np.ndarray], activation: Any, like: Any) -> Any:
    """The Linear, the MLP, or the module of the structure of `like`, that these arrays are of."""
    if set(arrays) == {"K"}:
        return Linear(arrays["K"])
    layers = len(arrays) // 2
    if arrays and set(arrays) == {f"{letter}{i}" for letter in "Wb" for i in range(layers)}:
        return MLP([(arrays[f"W{i}"], arrays[f"b{i}"]) for i in range(layers)], activation)
    if set(arrays) != {f"leaf{i}" for i in range(len(arrays))}:
        raise OffspanError(f"it holds the arrays {', '.join(arrays)}")
    if like is None:
        raise OffspanError("it holds a module of your own: pass one of the same structure as `like`")
    dynamic, static = eqx.partition(like, eqx.is_array)
    leaves, structure = jax.tree.flatten(dynamic)
    stored = [jnp.asarray(arrays[f"leaf{i}"]) for i in range(len(arrays))]
    if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in stored]:
        raise OffspanError("its arrays have other shapes than those of `like`")
    return eqx.combine(jax.tree.unflatten(structure, stored), static)
