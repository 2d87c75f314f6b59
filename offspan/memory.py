"""A long computation in parts, each made once, so that one that was interrupted continues."""

import contextlib
import dataclasses
import functools
import hashlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from offspan.errors import OffspanError


@runtime_checkable
class Memory(Protocol):
    """Where finished parts are kept, arrays by name: a dict, or something with a disk behind it."""

    def get(self, name: str, /) -> Any: ...

    def __setitem__(self, name: str, arrays: Mapping[str, np.ndarray], /) -> None: ...


class Parts:
    """Parts by name, each made once and kept in `memory`; `progress` is called with the share of the expected ones."""

    def __init__(self, memory: Memory, progress: Callable[[float], Any] | None, expected: int):
        self.memory, self.progress, self.expected = memory, progress, expected
        self.finished: dict[str, Mapping[str, np.ndarray]] = {}

    def __call__(self, name: str, make: Callable[[], Mapping[str, np.ndarray]]) -> Mapping[str, np.ndarray]:
        if name not in self.finished:
            kept = self.memory.get(name)
            if kept is None:
                self.memory[name] = kept = make()
            self.finished[name] = kept
            self.tell()
        return self.finished[name]

    def belong_to(self, where: str, given: list[Any]) -> None:
        """Refuses a memory that was filled with other arguments, as far as `traits` tell them apart."""
        digest = hashlib.sha256(b"\n".join(traits(given))).hexdigest()
        if str(self("arguments", lambda: {"arguments": np.asarray(digest)})["arguments"]) != digest:
            raise OffspanError(f"{where}: `memory` holds parts that were made with other arguments; pass another one.")

    def tell(self, more: float = 0.0) -> None:
        if self.progress is not None:
            self.progress(min((len(self.finished) + more) / self.expected, 1.0))

    def end(self) -> None:
        if self.progress is not None:
            self.progress(1.0)


def traits(value: Any, within: tuple[int, ...] = ()) -> Iterator[bytes]:
    """What tells arguments apart, the same in every process: numbers, strings, and the names, code and captured values of functions.

    Of an object that is none of these and no container, its type alone. `within` are the values that this one is a part of.
    """
    if id(value) in within:  # a function that refers to itself
        return
    if eqx.is_array_like(value):
        array = np.asarray(jax.random.key_data(value) if _is_key(value) else value)
        yield f"{array.dtype.str} {array.shape} ".encode() + (repr(value).encode() if array.dtype == object else array.tobytes())
        return
    parts = _parts_of(value)
    yield repr(value).encode() if isinstance(value, str | bytes | None) else f"{type(value).__qualname__} {len(parts)}".encode()
    for part in parts:
        yield from traits(part, (*within, id(value)))


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, types.CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if isinstance(value, types.FunctionType):
        return [value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__, _captured(value)]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):  # of jax, too
        return [value.func, value.args, value.keywords]
    if hasattr(value, "__wrapped__"):  # by jax.jit and the like
        return [value.__wrapped__]
    if _is_record(value):  # such as a problem or a controller
        return [getattr(value, one.name, None) for one in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return [*value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return [*value] if isinstance(value, tuple | list) else []


def _captured(function: types.FunctionType) -> dict[str, Any]:
    """What a function captures: variables of enclosing functions, and global numbers, strings, containers and dataclasses."""
    read = {name: function.__globals__[name] for name in _global_names(function.__code__) if name in function.__globals__}
    compared = str | dict | list | tuple | set | frozenset
    captured = {name: one for name, one in read.items() if eqx.is_array_like(one) or isinstance(one, compared) or _is_record(one)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable without a value yet
            captured[name] = cell.cell_contents
    return captured


def _global_names(code: types.CodeType) -> Iterator[str]:
    """Also of the functions inside."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _global_names(one)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
