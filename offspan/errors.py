"""The class of errors for mistakes of the caller, and the checks of arguments.

An error is one sentence that names the argument, shows the value and says what to do. Shapes are checked always; values on concrete arrays
only, since under jit, vmap and grad there is no value to check.
"""

import difflib
import functools
import importlib
import inspect
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike


class OffspanError(ValueError):
    """A mistake of the caller: a wrong argument, spec, file or command line. Other exceptions are the system's (OSError), or bugs.

    >>> import offspan
    >>> try:
    ...     offspan.basis(2, 3)
    ... except offspan.OffspanError as error:
    ...     print(error)
    basis: `count` is 3, but there are only 2 basis vectors in dimension 2.
    """


def nearest(word: str, known: list[str]) -> str:
    """A hint at the known word that was probably meant, for the end of a sentence."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_known(message: str, name: Any, known: Iterable[str]) -> None:
    """Raises where `name` is not among the known ones: "<message> 'nmae' (did you mean 'name'?); there are …"."""
    known = list(known)
    if name not in known:
        raise OffspanError(f"{message} {name!r}{nearest(str(name), known)}; there are {', '.join(known)}.")


def is_concrete(value: Any) -> bool:
    return not isinstance(value, Tracer)


def is_false(condition: ArrayLike) -> bool:
    """Whether `condition` is known, and known not to hold: the moment to raise. A traced condition is never known."""
    return is_concrete(condition) and not bool(condition)


def check_not_frozen(where: str, argument: str, function: Any) -> None:
    """Raises for a method of an object, or an object with arrays or numbers, that is no pytree: a compiled program would keep the numbers
    that the object has at the first call."""
    while not isinstance(function, type | eqx.Module) and (inner := _wrapped(function)) is not None:
        function = inner
    owner = function.__self__ if inspect.ismethod(function) else function
    if isinstance(owner, type | eqx.Module) or inspect.isfunction(owner) or not jax.tree_util.all_leaves([owner]):
        return
    attributes = [leaf for value in getattr(owner, "__dict__", {}).values() for leaf in _leaves(value)]
    if owner is not function or any(eqx.is_array(one) or isinstance(one, float) for one in attributes):
        what = f"a method of a {type(owner).__name__}" if owner is not function else f"a {type(owner).__name__}"
        raise OffspanError(
            f"{where}: {argument} is {what}, whose numbers would be compiled in at the first call, so that later changes have no effect; "
            "put them into an equinox.Module with `__call__`, or pass a function of NumPy arrays to `HostController(function, "
            "control_dim=…)` as a controller, to `BlackBox` as a system."
        )


def _wrapped(function: Any) -> Any:
    """What a partial function, or one of jax.jit and the like, calls."""
    return function.func if isinstance(function, functools.partial) else getattr(function, "__wrapped__", None)


def _leaves(value: Any) -> list[Any]:
    try:
        return jax.tree.leaves(value)
    except (TypeError, ValueError):  # of a dict whose keys cannot be sorted
        return [value]


def as_floats(where: str, name: str, value: Any, *, shape: tuple[int | None, ...], meaning: str) -> Array:
    """`value` as a floating-point array; `None` in `shape` stands for any length of at least one, `meaning` explains the shape."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise OffspanError(f"{where}: `{name}` must be an array of numbers ({meaning}), got a {type(value).__name__}.") from error
    if not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool):
        raise OffspanError(f"{where}: `{name}` must be an array of numbers ({meaning}), got an array of {array.dtype}.")
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise OffspanError(f"{where}: `{name}` has complex entries ({array.dtype}); states, controls and matrices are real here.")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(float)
    elif array.dtype.itemsize < 4:
        array = array.astype(jnp.float32)  # there is no linear algebra in half precision
    fits = array.ndim == len(shape) and all(
        have >= 1 if want is None else have == want for have, want in zip(array.shape, shape, strict=True)
    )
    if not fits:
        raise OffspanError(f"{where}: `{name}` has shape {array.shape}, but needs {meaning}.")
    if is_concrete(array) and not np.all(np.isfinite(np.asarray(array))):
        bad = int(np.sum(~np.isfinite(np.asarray(array))))
        raise OffspanError(f"{where}: `{name}` has {bad} NaN or infinite entr{'y' if bad == 1 else 'ies'}; pass finite numbers.")
    return array


def as_states(where: str, name: str, x0s: Any, state_dim: int | None) -> Array:
    """A set of initial states: an array `(s, n)`, one state a row."""
    n = "n" if state_dim is None else state_dim
    meaning = f"shape (s, {n}): one state a row, s ≥ 1 (a single state `x` goes in as `x[None, :]`)"
    return as_floats(where, name, x0s, shape=(None, state_dim), meaning=meaning)


def check_size(where: str, name: str, X: Array, power: int = 1) -> None:
    """Raises where all states are zero, or one whose size, to this power, is too small or too large for its precision."""
    if not is_concrete(X):
        return
    sizes, limits = np.abs(np.asarray(X, float)).max(axis=1), jnp.finfo(X.dtype)
    if not sizes.any():
        raise OffspanError(f"{where}: `{name}` holds only zero states; pass at least one that is not zero.")
    least, most = (float(limit) ** (1 / power) for limit in (limits.tiny, limits.max))
    if len(wrong := sizes[(sizes > 0) & (sizes < least) | (sizes > most)]):
        wider = "" if X.dtype == np.float64 else ", or compute in float64 (`jax.config.update('jax_enable_x64', True)`)"
        raise OffspanError(
            f"{where}: `{name}` has a state of size {wrong[0]:.3g}, but in {X.dtype} sizes must be from {least:.0e} to {most:.0e}; "
            f"scale the states{wider}."
        )


def is_number(value: Any) -> bool:
    """One number, also as an array without axes: it applies to every run or coordinate."""
    return isinstance(value, float | int) or getattr(value, "ndim", None) == 0


def as_count(where: str, name: str, value: Any, *, least: int) -> int:
    """A whole number of at least `least`."""
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool) or count < least:
        raise OffspanError(f"{where}: `{name}` is {value!r}, but must be a whole number of at least {least}.")
    return count


def as_key(where: str, key: Any) -> Array:
    """A jax random key, new style or old."""
    if isinstance(key, jax.Array | np.ndarray) and key.dtype == jnp.uint32 and key.shape == (2,):
        key = jax.random.wrap_key_data(jnp.asarray(key), impl="threefry2x32")  # of jax.random.PRNGKey
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()):
        raise OffspanError(
            f"{where}: `key` is {key!r}, but must be a random key: pass `jax.random.key({key if isinstance(key, int) else 0})`."
        )
    return key


def as_devices(where: str, devices: Any) -> list[Any]:
    """jax's devices; by default all of this process."""
    if devices is None:
        return jax.local_devices()
    listed = isinstance(devices, Sequence | np.ndarray) and len(devices) > 0 and all(isinstance(one, jax.Device) for one in devices)
    if not listed or len(set(devices)) < len(devices):
        raise OffspanError(
            f"{where}: `devices` is {devices!r}, but must be a list of jax's devices, each once, such as `jax.devices()[:2]`."
        )
    return [*devices]


def as_positive(where: str, name: str, value: Any) -> float:
    """A positive, finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not (np.isfinite(number) and number > 0):
        raise OffspanError(f"{where}: `{name}` is {value!r}, but must be a positive, finite number.")
    return number


def as_positive_array(where: str, name: str, value: Any, *, shape: tuple[int | None, ...] = (), meaning: str = "one number") -> Array:
    """Positive, finite numbers as an array; traced values are not checked."""
    array = as_floats(where, name, value, shape=shape, meaning=meaning)
    if is_concrete(array) and not np.all(np.asarray(array) > 0):
        raise OffspanError(f"{where}: `{name}` is {value!r}, but must be positive.")
    return array


Bounds = tuple[tuple[float, ...], tuple[float, ...]]


def as_bounds(where: str, bounds: Any, control_dim: int | None = None) -> Bounds:
    """A pair (low, high), each a number for all controls or one number a control, as tuples of one length."""
    try:
        low, high = bounds
        lows, highs = np.broadcast_arrays(np.atleast_1d(np.asarray(low, float)), np.asarray(high, float))
        if control_dim is not None:
            lows, highs = (np.broadcast_to(one, control_dim) for one in (lows, highs))
    except (TypeError, ValueError) as error:
        raise OffspanError(
            f"{where}: bounds {bounds!r} must be a pair (low, high) of numbers, or of one number for each control."
        ) from error
    if lows.ndim != 1 or not (np.all(np.isfinite(lows)) and np.all(np.isfinite(highs)) and np.all(lows < highs)):
        raise OffspanError(f"{where}: bounds low = {lows.tolist()} and high = {highs.tolist()} must be finite, with low < high.")
    return tuple(lows.tolist()), tuple(highs.tolist())


# Modules, and the extra that brings each.
EXTRAS = {
    "gymnasium": "gymnasium",
    "mujoco": "mujoco",
    "mujoco.mjx": "mjx",
    "control": "control",
    "onnx": "policies",
    "safetensors": "policies",
    "distributed": "cluster",
}


def extra(module: str) -> Any:
    """A module of an optional dependency; where it is missing, the error names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise OffspanError(f"the package {module!r} is missing: pip install 'offspan[{EXTRAS[module]}]' ({error}).") from error
