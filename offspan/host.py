"""NumPy functions inside compiled programs: called with whole batches, without derivatives, and with their own errors."""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from offspan.errors import OffspanError

KEPT = 32  # uncollected exceptions, at most: of programs that ran outside of `own_errors`, and of further devices
_raised: dict[str, Exception] = {}  # by host functions, on a thread of the runtime; by a name that the runtime's error repeats
_numbers = itertools.count()
_is_used = False  # whether any program of this process may call a host function


class HostFunctionError(RuntimeError):
    """Stands for the exception of a host function inside the runtime."""


def call(where: str, function: Callable[..., Any], shape: tuple[int, ...], *arguments: Array) -> Array:
    """`function` of arrays with a leading axis of one batch, whatever is vmapped here; for one state it must return `shape`.

    A derivative raises at once; an exception of the function is raised by `own_errors`.
    """
    return _call(where, function, shape, *arguments)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _call(where, function, shape, *arguments):
    dtype = arguments[0].dtype

    def on_host(*arrays):
        batch = arrays[0].shape[:-1]
        try:
            returned = function(*(np.asarray(array).reshape(-1, array.shape[-1]) for array in arrays))
            return as_returned(where, returned, (int(np.prod(batch)), *shape), dtype).reshape((*batch, *shape))
        except Exception as error:
            name = f"host error {next(_numbers)}"
            _raised[name] = error
            for oldest in list(_raised)[:-KEPT]:
                _raised.pop(oldest, None)
            raise HostFunctionError(f"{where} failed with {type(error).__name__}: {error} ({name})") from error

    global _is_used
    _is_used = True
    return jax.pure_callback(on_host, jax.ShapeDtypeStruct(shape, dtype), *arguments, vmap_method="broadcast_all")


@_call.defjvp
def _no_derivative(where, function, shape, primals, tangents):
    raise OffspanError(
        f"this call needs a derivative, but {where} is a function of NumPy arrays and has no derivative here; train with "
        "`gradient=TwoPoint(radius=…, directions=…)` and a `key`, and choose states by a method without gradients, such as pilot or "
        "farthest."
    )


def as_returned(where: str, returned: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    try:
        array = np.asarray(returned)
        array = array if array.dtype.kind == "c" else array.astype(dtype)
    except (TypeError, ValueError):
        what = f"{where} returned a {type(returned).__name__} that is no array of numbers"
        raise OffspanError(f"{what}; it is called with batches, a state in each row.") from None
    if array.dtype.kind == "c":
        raise OffspanError(f"{where} returned complex numbers, but states, controls and costs are real.")
    if array.shape != shape:
        raise OffspanError(f"{where} returned shape {array.shape} for a batch of {shape[0]}, but must return shape {shape}.")
    return array


@contextlib.contextmanager
def own_errors() -> Iterator[Callable[[Any], Any]]:
    """Inside, an exception of a host function is raised as it is, not as the runtime's; pass results through the function that this yields,
    which waits for them."""
    try:
        yield _finished
    except (jax.errors.JaxRuntimeError, HostFunctionError, ValueError) as error:  # which of them depends on where the runtime noticed
        names = re.findall(r"\((host error \d+)\)", str(error))
        own = _raised.pop(names[-1], None) if names else None
        if own is None:
            raise
        raise own from None


def is_hosted(part: Any) -> bool:
    """Whether a problem or a controller has a host function in it: a node of its tree with `on_host`."""
    return any(getattr(leaf, "on_host", False) for leaf in jax.tree.leaves(part, is_leaf=lambda node: getattr(node, "on_host", False)))


def _finished(results: Any) -> Any:
    """Waits for the results where a host function may have made them, unless they are traced."""
    if _is_used and not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(results)):
        jax.block_until_ready(results)
    return results
