"""Policies that another library trained, as controllers: ONNX and safetensors files, evaluated in jax. Nothing is ever unpickled."""

import functools
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from offspan.controllers import ACTIVATIONS, MLP
from offspan.errors import OffspanError, as_bounds
from offspan.files import excerpt

LARGEST = 2**26  # entries of one tensor, and of all that one call computes: a small file must not ask for more memory than there is
LARGEST_STATIC = 2**22  # what NumPy computes is computed before its size can be checked, so its operands must be small
# What onnx, NumPy and jax raise for a graph that is not consistent.
FAILURES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, AssertionError, NotImplementedError)


def load_policy(
    path: str | os.PathLike,
    *,
    low: float | Sequence[float] | None = None,
    high: float | Sequence[float] | None = None,
    activation: str | None = None,
) -> Any:
    """The policy of an .onnx or a .safetensors file as a controller u = π(o), o one observation; its weights can be trained  [beyond R24].

    Of an ONNX graph with several outputs the first is the action, and only what it depends on is read. A safetensors file has the layers of
    an `MLP`, "0.weight" (out, in) and "0.bias" (out,), "1.weight", …, as `torch.nn.Sequential` names them, with any prefix. The
    `activation` between them, such as "tanh", is given here or named in the metadata of the file; there is none after the last.

    With `low` and `high`, numbers or one for each control, u is clipped to [low, high], as Stable-Baselines3 does for PPO and A2C. It is
    not rescaled, which SAC and TD3 need.

    >>> import tempfile, jax.numpy as jnp, numpy as np
    >>> from offspan.policies import load_policy
    >>> from safetensors.numpy import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"0.weight": np.array([[2.0], [0.5]]), "0.bias": np.zeros(2)}, f"{folder}/policy.safetensors")
    ...     load_policy(f"{folder}/policy.safetensors", low=-1.0, high=3.0)(jnp.array([4.0])).tolist()
    [3.0, 2.0]
    """
    path = Path(path)
    where = f"load_policy: {str(path)!r}"
    read = {".onnx": _read_onnx, ".safetensors": _read_safetensors}.get(path.suffix.lower())
    if read is None:
        raise OffspanError(
            f"{where} is no .onnx or .safetensors file, and no other is opened, since pickles (.zip, .pt, .pkl) can run code; where it was "
            "trained, write it with `torch.onnx.export(policy, (observation,), 'policy.onnx', external_data=False)`."
        )
    if not path.is_file():
        raise OffspanError(f"load_policy: there is no file {str(path)!r}.")
    if (low is None) != (high is None):
        raise OffspanError(f"load_policy: `low` is {low!r} and `high` is {high!r}, but u is clipped on both sides; pass both or neither.")
    if activation is not None and read is not _read_safetensors:
        raise OffspanError(f"{where} has its activations in its graph; leave `activation` out.")
    bounds = None if low is None else as_bounds("load_policy", (low, high))
    try:
        controller, size = _read_safetensors(path, activation) if read is _read_safetensors else _read_onnx(path)
        controller = Clipped(controller, *bounds) if bounds else controller
        if size is not None:
            jax.eval_shape(controller, jax.ShapeDtypeStruct((size,), jnp.result_type(float)))
    except ImportError as error:
        raise OffspanError(f"{where} needs the package {error.name}; install it with `pip install 'offspan[policies]'`.") from error
    except (OSError, *FAILURES) as error:
        reason = str(error).rstrip(".") if isinstance(error, OffspanError) else excerpt(error)
        raise OffspanError(f"{where} cannot be used: {reason}.") from error
    return controller


class Clipped(eqx.Module):
    """u = min(max(policy(x), low), high)."""

    policy: Callable[[Array], Array]
    low: tuple[float, ...] = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "k"]) -> Float[Array, "m"]:
        u = self.policy(x)
        if len(self.low) not in (1, u.size):
            raise OffspanError(f"there are bounds for {len(self.low)} controls, but the policy has {u.size}.")
        return jnp.clip(u, jnp.asarray(self.low, u.dtype), jnp.asarray(self.high, u.dtype))


class Graph(NamedTuple):
    """What of an ONNX file is not a weight, hashable: files of the same graph share their compiled programs."""

    nodes: tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[tuple[str, Any], ...]], ...]  # operation, inputs, outputs, attributes
    constants: tuple[tuple[str, str, tuple[int, ...], bytes], ...]  # name, dtype, shape, entries
    input: str
    output: str
    batched: bool
    size: int | None  # of an observation, where the file says it


class Policy(eqx.Module):
    """u = graph(o; weights): an ONNX graph, computed in the precision of the observation and the weights."""

    weights: dict[str, Array]
    graph: Graph = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "k"]) -> Float[Array, "m"]:
        observation, size = jnp.asarray(observation), self.graph.size
        if observation.shape != (observation.size if size is None else size,):
            raise OffspanError(f"the policy takes observations of shape ({size or 'k'},), not {observation.shape}.")
        if size is None:  # not checked when it was loaded; this computes nothing
            eqx.filter_eval_shape(_evaluate, self, observation)
        return _evaluate(self, observation)


def _evaluate(policy: Policy, observation: Array) -> Array:
    graph = policy.graph
    values: dict[str, Any] = {name: np.ndarray(shape, dtype, data) for name, dtype, shape, data in graph.constants}
    values |= policy.weights | {graph.input: observation[None] if graph.batched else observation}
    entries = 0
    for operation, inputs, outputs, attributes in graph.nodes:
        try:
            results = _apply(operation, [values[name] if name else None for name in inputs], dict(attributes))
        except FAILURES as error:
            raise OffspanError(f"its operation {operation} fails ({excerpt(error)}).") from error
        values |= zip(outputs, results, strict=False)  # a Dropout may have a second output, which is not computed here
        entries += sum(_entries(result.shape) for result in results)
        if entries > LARGEST:
            raise OffspanError(f"one call of the policy would compute more than {LARGEST} numbers.")
    u = jnp.asarray(values[graph.output])
    if u.size == 0 or not (u.ndim in (1, 2) and u.shape[0] == 1 if graph.batched else u.ndim == 1):
        raise OffspanError(f"its output has shape {u.shape}, but must be one vector, {'(1, m)' if graph.batched else '(m,)'}.")
    return u.reshape(-1).astype(u.dtype if jnp.issubdtype(u.dtype, jnp.floating) else float)


def _apply(operation: str, arrays: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
    """Shapes and indices must be known while jax traces, so NumPy computes what depends on constants alone."""
    given = [array for array in arrays if array is not None]
    static = all(isinstance(array, np.ndarray) for array in given)
    if static and math.prod(_entries(array.shape) for array in given) > LARGEST_STATIC:
        raise ValueError("its constants are too large")
    with jax.numpy_rank_promotion("allow"), np.errstate(all="ignore"):  # ONNX broadcasts as NumPy does
        result = OPERATIONS[operation](np if static else jnp, *arrays, **attributes)
    return [one if isinstance(one, jax.Array) else np.asarray(one) for one in (result if isinstance(result, list) else [result])]


def _entries(shape: Sequence[int]) -> int:
    """The number of entries, with empty axes counted as one, since a product or a sum over them is not empty."""
    return math.prod(max(length, 1) for length in shape)


def _ints(values: Any) -> tuple[int, ...]:
    if isinstance(values, jax.Array):
        raise ValueError("a shape, axis or range depends on the observation or the weights, but must be constant")
    return tuple(int(value) for value in np.asarray([] if values is None else values).reshape(-1))


def _named(name: str) -> Callable[..., Any]:
    return lambda xp, *arrays: getattr(xp, name)(*arrays)


def _gemm(xp, a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    product = alpha * jnp.matmul(a.T if transA else a, b.T if transB else b)
    return product if c is None else product + beta * c


def _cast(xp, x, *, to, saturate=1, round_mode=b"up"):
    if to.startswith("float") and jnp.issubdtype(x.dtype, jnp.floating):
        return x  # the precision is that of the observation and the weights
    return x.astype(to if xp is np else jax.dtypes.canonicalize_dtype(to))


def _slice(xp, x, starts, ends, axes=None, steps=None):
    starts, index = _ints(starts), [slice(None)] * x.ndim
    axes, steps = _ints(axes) or range(len(starts)), _ints(steps) or (1,) * len(starts)
    for axis, *limits in zip(axes, starts, _ints(ends), steps, strict=True):
        index[axis] = slice(*limits)
    return x[tuple(index)]


def _gather(xp, x, indices, *, axis=0):
    length = x.shape[axis]
    if isinstance(indices, np.ndarray) and not np.all((indices >= -length) & (indices < length)):
        raise IndexError(f"an index is not among the {length} of the axis")
    return xp.take(x, indices, axis=axis)


def _split(xp, x, split=None, *, axis=0, num_outputs):
    chunk = -(-x.shape[axis] // num_outputs)
    ends = np.cumsum(_ints(split) or [chunk] * (num_outputs - 1) + [x.shape[axis] - chunk * (num_outputs - 1)])
    if ends[-1] != x.shape[axis] or np.any(np.diff(ends, prepend=0) < 0):
        raise ValueError(f"an axis of {x.shape[axis]} cannot be split at {ends.tolist()}")
    return list(xp.split(x, ends[:-1], axis=axis))


def _argmax(xp, x, *, axis=0, keepdims=1, select_last_index=0):
    index = jnp.argmax(jnp.flip(x, axis) if select_last_index else x, axis, keepdims=bool(keepdims))
    return x.shape[axis] - 1 - index if select_last_index else index


def _reduce(reduction, x, axes=None, *, keepdims=1, noop_with_empty_axes=0):
    axes = _ints(axes)
    return x if noop_with_empty_axes and not axes else reduction(x, axis=axes or None, keepdims=bool(keepdims))


def _from(axis: int, x: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim)[axis:])


def _layer_normalization(xp, x, scale, bias=0.0, *, axis=-1, epsilon=1e-5, stash_type=1):
    centred = x - jnp.mean(x, _from(axis, x), keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, _from(axis, x), keepdims=True) + epsilon) * scale + bias


SAME_IN_NUMPY = {
    **{"Abs": "abs", "Add": "add", "Exp": "exp", "Greater": "greater", "Less": "less", "Log": "log", "Mul": "multiply"},
    **{"Neg": "negative", "Pow": "power", "Sqrt": "sqrt", "Sub": "subtract", "Tanh": "tanh", "Where": "where"},
}
# Inputs go in by position and attributes by name, so that an attribute that a later opset made an input is one parameter here.
OPERATIONS: dict[str, Callable[..., Any]] = {operation: _named(name) for operation, name in SAME_IN_NUMPY.items()} | {
    "ArgMax": _argmax,
    "Cast": _cast,
    "Clip": lambda xp, x, min=None, max=None: xp.clip(x, min, max),
    "Concat": lambda xp, *arrays, axis: xp.concatenate(arrays, axis=axis),
    "Div": lambda xp, a, b: xp.trunc(a / b).astype(a.dtype) if jnp.issubdtype(a.dtype, jnp.integer) else a / b,
    "Dropout": lambda xp, x, *_, ratio=0.5, seed=0: x,
    "Elu": lambda xp, x, *, alpha=1.0: jax.nn.elu(x, alpha),
    "Erf": lambda xp, x: jax.lax.erf(x),
    "Flatten": lambda xp, x, *, axis=1: xp.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))),
    "Gather": _gather,
    "Gelu": lambda xp, x, *, approximate=b"none": jax.nn.gelu(x, approximate=approximate == b"tanh"),
    "Gemm": _gemm,
    "Identity": lambda xp, x: x,
    "LayerNormalization": _layer_normalization,
    "LeakyRelu": lambda xp, x, *, alpha=0.01: jax.nn.leaky_relu(x, alpha),
    "MatMul": lambda xp, a, b: jnp.matmul(a, b),
    "Max": lambda xp, *arrays: functools.reduce(xp.maximum, arrays),
    "Min": lambda xp, *arrays: functools.reduce(xp.minimum, arrays),
    "ReduceMean": lambda xp, *inputs, **attributes: _reduce(jnp.mean, *inputs, **attributes),
    "ReduceSum": lambda xp, *inputs, **attributes: _reduce(jnp.sum, *inputs, **attributes),
    "Relu": lambda xp, x: jax.nn.relu(x),
    "Reshape": lambda xp, x, shape, *, allowzero=0: xp.reshape(
        x, [n if n or allowzero else x.shape[i] for i, n in enumerate(_ints(shape))]
    ),
    "Selu": lambda xp, x, *, alpha=1.6732632423543772, gamma=1.0507009873554805: gamma * jax.nn.elu(x, alpha),
    "Shape": lambda xp, x, *, start=0, end=None: np.array(x.shape[start:end], np.int64),
    "Sigmoid": lambda xp, x: jax.nn.sigmoid(x),
    "Slice": _slice,
    "Softmax": lambda xp, x, *, axis=-1, flat=False: jax.nn.softmax(x, _from(axis, x) if flat else axis),
    "Softplus": lambda xp, x: jax.nn.softplus(x),
    "Split": _split,
    "Squeeze": lambda xp, x, axes=None: xp.squeeze(x, _ints(axes) or None),
    "Transpose": lambda xp, x, *, perm=None: xp.transpose(x, perm),
    "Unsqueeze": lambda xp, x, axes: xp.expand_dims(x, _ints(axes)),
}


def _read_onnx(path: Path) -> tuple[Policy, int | None]:
    """The part of the graph that its first output depends on, and the size of an observation, where the file says it."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except DecodeError as error:
        raise OffspanError("it is not a valid ONNX file; export the policy again.") from error
    graph, opset = model.graph, max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=0)
    if not graph.output or opset < 7:
        raise OffspanError("it is not a valid ONNX file with an output and opset 7 or newer; export the policy again.")
    tensors: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
    inputs = [one for one in graph.input if one.name not in tensors]
    if len(inputs) != 1:
        raise OffspanError(f"it has {len(inputs)} inputs ({_listed(one.name for one in inputs)}), but must have one, the observation.")
    (name,), kind = (one.name for one in inputs), inputs[0].type.tensor_type
    shape = [length.dim_value if length.dim_value > 0 else None for length in kind.shape.dim]
    if kind.elem_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16) or len(shape) not in (1, 2):
        raise OffspanError(f"its input {name!r} must be floating-point numbers of shape (batch, k) or (k,).")
    nodes, needed = [], {graph.output[0].name}
    for node in reversed(graph.node):
        if needed.isdisjoint(node.output):
            continue
        domain = node.domain.removeprefix("ai.onnx")
        if domain or node.op_type not in {*OPERATIONS, "Constant"}:
            raise OffspanError(
                f"it has the operation {node.op_type!r}{f' of the domain {node.domain!r}' if domain else ''}, which is not known here; "
                "export the deterministic action only, or pass a function that runs the model to `HostController`."
            )
        attributes: dict[str, Any] = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        attributes = {one: tuple(value) if isinstance(value, list) else value for one, value in attributes.items()}
        if node.op_type == "Constant":
            (tensors[node.output[0]],) = attributes.values()
            continue  # it stays among the needed ones, as an initializer does
        if node.op_type == "Cast":
            attributes["to"] = _numeric("a Cast", onnx.helper.tensor_dtype_to_np_dtype(attributes["to"])).name
        elif node.op_type == "Split":
            attributes["num_outputs"] = len(node.output)
        elif node.op_type == "Softmax" and opset < 13:
            attributes = {"axis": 1, "flat": True} | attributes
        needed = needed.difference(node.output).union(filter(None, node.input))
        nodes.append((node.op_type, tuple(node.input), tuple(node.output), tuple(sorted(attributes.items()))))
    if not needed <= {name, *tensors}:
        raise OffspanError(f"it is not a valid ONNX file: nothing computes {_listed(sorted(needed - {name, *tensors}))}.")
    arrays = {one: _as_array(one, tensors[one]) for one in sorted(needed - {name})}
    # A scalar is a power or the bound of a Clip, which no optimiser should move.
    weights = {one: jnp.asarray(array) for one, array in arrays.items() if array.dtype.kind == "f" and array.ndim and array.size}
    constants = tuple((one, array.dtype.name, array.shape, array.tobytes()) for one, array in arrays.items() if one not in weights)
    frozen = Graph(tuple(reversed(nodes)), constants, name, graph.output[0].name, len(shape) == 2, shape[-1])
    hash(frozen)  # which jax needs; raises for an attribute that is a tensor or a graph
    return Policy(weights, frozen), frozen.size


def _as_array(name: str, tensor: Any) -> np.ndarray:
    """The entries of a tensor, or of a number or tuple, which a Constant may have in its place."""
    from onnx import TensorProto, numpy_helper

    if not isinstance(tensor, TensorProto):
        array = np.asarray(tensor)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
    elif tensor.data_location == TensorProto.EXTERNAL:
        raise OffspanError(f"its tensor {name!r} is stored in another file; export the policy again, with `external_data=False`.")
    elif _entries(tensor.dims) > LARGEST:
        raise OffspanError(f"its tensor {name!r} has more than {LARGEST} entries.")
    else:
        array = numpy_helper.to_array(tensor)
    _numeric(f"its tensor {name!r}", array.dtype)
    if np.isnan(array).any():
        raise OffspanError(f"its tensor {name!r} has entries that are NaN.")
    return array


def _numeric(what: str, dtype: np.dtype) -> np.dtype:
    if dtype.kind not in "biuf" or dtype.isbuiltin != 1:
        raise OffspanError(f"{what} has the type {dtype.name}; export the policy with float32 weights.")
    return dtype


def _listed(names: Any) -> str:
    return excerpt(ValueError(", ".join(map(repr, names)) or "none"))


def _read_safetensors(path: Path, activation: str | None) -> tuple[MLP, int]:
    """The network of the layers in a file, and the size of an observation."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata, arrays = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise OffspanError(f"it is not a valid safetensors file ({excerpt(error)}).") from error
    parts = [re.fullmatch(r"(|.*\.)([0-9]{1,9})\.(weight|bias)", name) for name in arrays]
    layers = {(int(part[2]), part[3]): arrays[part[0]] for part in parts if part}
    numbers = sorted({number for number, _ in layers})
    if len({part and part[1] for part in parts}) != 1 or len(arrays) != 2 * len(numbers) or len(layers) != len(arrays):
        raise OffspanError(f"it has the tensors {_listed(sorted(arrays))}, but must have the layers of an MLP: '0.weight', '0.bias', ….")
    named = metadata.get("activation")
    if len(numbers) > 1 and named is None is activation:
        raise OffspanError('it does not name the activation between its layers; pass `activation=`, such as "tanh" or "relu"')
    if named in ACTIVATIONS and activation in ACTIVATIONS and activation != named:
        raise OffspanError(f"`activation` is {activation!r}, but the file names {named!r}; leave `activation` out")
    used = next((one for one in (activation, named) if one is not None), "relu")  # without a hidden layer it is not used
    network = MLP([(layers[number, "weight"], layers[number, "bias"]) for number in numbers], used)
    return network, network.layers[0][0].shape[1]
