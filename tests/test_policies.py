import pickle
import re
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import optax
import pytest
from jax.core import Tracer
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

import offspan
from offspan.policies import LARGEST, OPERATIONS, load_policy


def normal(*shape):
    """The same array for the same shape, whichever tests run."""
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


OBSERVATIONS = normal(1000, 4)


def ints(*values):
    return np.array(values, np.int64)


def node(operation, inputs="o", outputs="u", **attributes):
    """ "-" stands for an input that is left out."""
    return helper.make_node(operation, [name.replace("-", "") for name in inputs.split()], outputs.split(), **attributes)


def graph_of(nodes, tensors=None, *, opset=17, inputs=None, outputs="u", kind=TensorProto.FLOAT):
    """An ONNX model of these nodes; `inputs` = {name: shape}, o of shape (batch, 4) unless told."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (tensors or {}).items()]
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, shape in (inputs or {"o": ("batch", 4)}).items()]
    action = TensorProto.INT64 if nodes[-1].op_type == "ArgMax" else TensorProto.FLOAT
    outputs = [helper.make_tensor_value_info(name, action, None) for name in outputs.split()]
    graph = helper.make_graph(nodes, "policy", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def saved(tmp_path, model):
    path = tmp_path / "policy.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def loaded(tmp_path, model, **bounds):
    return load_policy(saved(tmp_path, model), **bounds)


def error_of(path, **bounds):
    """What `load_policy` says: one sentence, with the path."""
    with pytest.raises(offspan.OffspanError) as raised:
        load_policy(path, **bounds)
    said = str(raised.value)
    assert said.startswith("load_policy: ")
    assert said.endswith(".")
    assert "\n" not in said
    assert str(path) in said
    return said


def assert_agrees(tmp_path, model):
    """With ONNX Runtime, in single precision, on each of 1,000 observations."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rank = len(session.get_inputs()[0].shape)
    first = session.get_outputs()[0].name
    expected = np.array([session.run([first], {"o": o[None] if rank == 2 else o})[0] for o in OBSERVATIONS]).reshape(1000, -1)
    policy = loaded(tmp_path, model)
    found = jax.jit(jax.vmap(policy))(jnp.asarray(OBSERVATIONS, float))
    assert np.ptp(expected) > 0  # the policy is not constant
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    return policy


def tanh_network():
    nodes = [
        node("Gemm", "o W1 b1", "z", alpha=0.5, beta=2.0, transB=1),
        node("Tanh", "z", "h"),
        node("Gemm", "h W2 b2", transB=1),
    ]
    return graph_of(nodes, {"W1": normal(8, 4), "b1": normal(8), "W2": normal(2, 8), "b2": normal(2)})


def test_a_tanh_network_by_gemm(tmp_path):
    policy = assert_agrees(tmp_path, tanh_network())
    o = jnp.asarray(OBSERVATIONS, float)
    np.testing.assert_allclose(jax.vmap(policy)(o[:3]), jnp.stack([policy(one) for one in o[:3]]), rtol=1e-12)
    assert {name: weight.shape for name, weight in policy.weights.items()} == {"W1": (8, 4), "b1": (8,), "W2": (2, 8), "b2": (2,)}


def test_a_relu_network_by_matmul_and_add(tmp_path):
    nodes = [
        *(node("MatMul", "o W1", "y"), node("Add", "y b1", "z"), node("Relu", "z", "h")),
        *(node("MatMul", "h W2", "v"), node("Add", "v b2")),
    ]
    tensors = {"W1": normal(4, 16) / 2, "b1": normal(16), "W2": normal(16, 3) / 4, "b2": normal(3)}
    assert_agrees(tmp_path, graph_of(nodes, tensors))


def test_normalised_observations_slices_and_clips(tmp_path):
    nodes = [
        *(node("Sub", "o mean", "centred"), node("Div", "centred std", "scaled"), node("Clip", "scaled low high", "clipped")),
        *(
            node("Slice", "clipped one four axes", "end"),
            node("Slice", "o zero one axes", "begin"),
            node("Concat", "end begin", "h", axis=-1),
        ),
        node("Gemm", "h W b", transB=1),
    ]
    tensors = {"mean": normal(4), "std": np.abs(normal(4)) + 0.5, "low": np.float32(-1.0), "high": np.float32(1.5)}
    tensors |= {"zero": ints(0), "one": ints(1), "four": ints(4), "axes": ints(1), "W": normal(2, 4), "b": normal(2)}
    policy = assert_agrees(tmp_path, graph_of(nodes, tensors))
    assert sorted(policy.weights) == ["W", "b", "mean", "std"]  # bounds and indices are no weights


W = normal(4, 3)
TENSORS = {"W": W, "c": normal(4), "half": np.float32(0.5), "two": np.float32(2.0), "i": ints(2, -1, 0), "sizes": ints(3, 1)}
TENSORS |= {"zero": ints(0), "one": ints(1), "minus": ints(-1), "least": ints(-(2**63)), "big": ints(2**63 - 1), "outer": ints(1, 3)}
TENSORS |= {"shape": ints(0, -1), "row": ints(1, 4), "third": ints(-3), "none": np.float32(0.0)}
SINGLE = {
    "Abs": [node("Abs")],
    "Add": [node("Add", "o c")],
    "ArgMax": [node("ArgMax", axis=1)],
    "ArgMax-flat": [node("ArgMax", axis=-1, keepdims=0)],
    "ArgMax-last": [
        node("Greater", "o half", "b"),
        node("Cast", "b", "x", to=TensorProto.FLOAT),
        node("ArgMax", "x", axis=1, select_last_index=1),
    ],
    "Cast": [node("Cast", "o", "x", to=TensorProto.INT64), node("Cast", "x", to=TensorProto.FLOAT)],
    "Cast-double": [node("Cast", "o", "x", to=TensorProto.DOUBLE), node("Cast", "x", to=TensorProto.FLOAT)],
    "Cast-bool": [node("Relu", "o", "x"), node("Cast", "x", "b", to=TensorProto.BOOL), node("Cast", "b", to=TensorProto.FLOAT)],
    "Clip": [node("Clip", "o - half")],
    "Concat": [node("Concat", "o o", axis=1)],
    "Constant": [node("Constant", "", "a", value_floats=[1.0, 2.0, 3.0, 4.0]), node("Mul", "o a")],
    "Constant-float": [node("Constant", "", "a", value_float=3.0), node("Mul", "o a")],
    "Constant-ints": [node("Constant", "", "i", value_ints=[3, 1]), node("Gather", "o i", axis=1)],
    "Constant-int": [node("Constant", "", "i", value_int=3), node("Gather", "o i", "x", axis=1), node("Unsqueeze", "x one")],
    "Constant-tensor": [node("Constant", "", "a", value=numpy_helper.from_array(normal(4))), node("Mul", "o a")],
    "Div": [node("Div", "o c")],
    "Dropout": [node("Dropout", "o half", "u mask")],
    "Elu": [node("Elu", alpha=0.7)],
    "Erf": [node("Erf")],
    "Exp": [node("Exp")],
    "Flatten": [node("Unsqueeze", "o one", "x"), node("Flatten", "x")],
    "Flatten-end": [node("Flatten", "o", "x", axis=2), node("Transpose", "x")],
    "Gather": [node("Gather", "o i", axis=1)],
    "Gelu": [node("Gelu")],
    "Gelu-tanh": [node("Gelu", approximate="tanh")],
    "Gemm": [node("Transpose", "o", "x"), node("Gemm", "x W", transA=1)],
    "Greater": [node("Greater", "o c", "b"), node("Cast", "b", to=TensorProto.FLOAT)],
    "Identity": [node("Identity")],
    "LayerNormalization": [node("LayerNormalization", "o c c")],
    "LayerNormalization-plain": [node("LayerNormalization", "o c", axis=1, epsilon=0.1)],
    "LeakyRelu": [node("LeakyRelu", alpha=0.2)],
    "Less": [node("Less", "o c", "b"), node("Where", "b o c")],
    "Log": [node("Abs", "o", "x"), node("Log", "x")],
    "Log-static": [node("Log", "none", "x"), node("Max", "o x")],  # −∞, and no warning
    "MatMul": [node("MatMul", "o W")],
    "Max": [node("Max", "o c half")],
    "Min": [node("Min", "o c half")],
    "Mul": [node("Mul", "o c")],
    "Neg": [node("Neg")],
    "Pow": [node("Pow", "o two")],
    "ReduceMean": [node("ReduceMean", "o one")],
    "ReduceMean-flat": [node("ReduceMean", "o one", keepdims=0)],
    "ReduceSum": [node("ReduceSum", "o one")],
    "ReduceSum-all": [node("ReduceSum")],
    "ReduceSum-none": [node("ReduceSum", noop_with_empty_axes=1)],
    "Relu": [node("Relu")],
    "Reshape": [node("Reshape", "o shape")],
    "Selu": [node("Selu")],
    "Selu-own": [node("Selu", alpha=2.0, gamma=0.5)],
    "Shape": [node("Shape", "o", "n"), node("Gather", "n zero", "b"), node("Concat", "b minus", "s", axis=0), node("Reshape", "o s")],
    "Shape-divided": [node("Shape", "o", "k", start=1), node("Div", "k third", "n"), node("Slice", "o n big one", "u")],
    "Sigmoid": [node("Sigmoid")],
    "Slice": [node("Slice", "o minus least one minus")],
    "Softmax": [node("Softmax")],
    "Softplus": [node("Softplus")],
    "Split": [node("Split", "o sizes", "a b", axis=1), node("Concat", "b a", axis=1)],
    "Split-even": [node("Split", "o", "a b", axis=1, num_outputs=2), node("Sub", "b a")],
    "Split-uneven": [
        *(node("Concat", "o o", "x", axis=1), node("Split", "x", "a b d", axis=1, num_outputs=3)),
        *(node("Concat", "d b a", axis=1),),
    ],
    "Sqrt": [node("Abs", "o", "x"), node("Sqrt", "x")],
    "Squeeze": [node("Squeeze", "o zero", "x"), node("Unsqueeze", "x zero")],
    "Squeeze-all": [node("Squeeze", "o", "x"), node("Unsqueeze", "x zero")],
    "Sub": [node("Sub", "o c")],
    "Tanh": [node("Tanh")],
    "Transpose": [node("Unsqueeze", "o outer", "x"), node("Transpose", "x", "y", perm=[3, 1, 2, 0]), node("Reshape", "y row")],
    "Unsqueeze": [node("Unsqueeze", "o one", "x"), node("Squeeze", "x one")],
    "Where": [node("Less", "o half", "b"), node("Where", "b o two")],
}


@pytest.mark.parametrize("name", SINGLE)
def test_each_operation_agrees_with_onnx_runtime(tmp_path, name):
    nodes = SINGLE[name]
    read, made = ({name for one in nodes for name in names(one)} for names in (lambda one: one.input, lambda one: one.output))
    tensors = {name: array for name, array in TENSORS.items() if name in read - made}
    assert_agrees(tmp_path, graph_of(nodes, tensors, opset=20))


def test_each_operation_is_tested():
    assert {one.op_type for nodes in SINGLE.values() for one in nodes} == {*OPERATIONS, "Constant"}


OLD = {
    "Clip": (7, [node("Clip", min=-0.5, max=0.5)]),
    "Slice": (9, [node("Slice", starts=[1], ends=[3], axes=[1])]),
    "Slice-no-axes": (9, [node("Slice", starts=[0, 1], ends=[1, 3])]),
    "Squeeze": (11, [node("Squeeze", "o", "x", axes=[0]), node("Unsqueeze", "x", axes=[0])]),
    "Split": (11, [node("Split", "o", "a b", axis=1, split=[3, 1]), node("Concat", "b a", axis=1)]),
    "Softmax": (11, [node("Softmax")]),
    "Softmax-flat": (11, [node("Unsqueeze", "o", "x", axes=[1]), node("Softmax", "x", "y"), node("Squeeze", "y", axes=[1])]),
    "ReduceSum": (11, [node("ReduceSum", axes=[1], keepdims=1)]),
    "ReduceMean": (13, [node("ReduceMean", axes=[-1])]),
    "Dropout": (7, [node("Dropout", ratio=0.3)]),
}


@pytest.mark.parametrize("name", OLD)
def test_older_opsets_have_axes_and_bounds_as_attributes(tmp_path, name):
    opset, nodes = OLD[name]
    assert_agrees(tmp_path, graph_of(nodes, opset=opset))


def test_the_suffix_may_be_in_capitals(tmp_path):
    path = saved(tmp_path, tanh_network()).rename(tmp_path / "POLICY.ONNX")
    assert load_policy(path)(jnp.zeros(4)).shape == (2,)


def test_an_observation_without_a_batch_axis(tmp_path):
    assert_agrees(tmp_path, graph_of([node("MatMul", "o W")], {"W": W}, inputs={"o": (4,)}))


@pytest.mark.parametrize("shape", [("batch", "k"), ("k",)])
def test_a_graph_of_any_size_is_checked_when_it_is_called(tmp_path, shape):
    policy = assert_agrees(tmp_path, graph_of([node("Mul", "o c")], {"c": TENSORS["c"]}, inputs={"o": shape}))
    with pytest.raises(offspan.OffspanError, match=r"its operation Mul fails \(.*\)\."):
        policy(jnp.zeros(3))
    with pytest.raises(offspan.OffspanError, match=r"bounds for 2 controls, but the policy has 4"):
        loaded(tmp_path, graph_of([node("Relu")], inputs={"o": shape}), low=[-1.0, -1.0], high=1.0)(jnp.zeros(4))


def test_an_observation_of_another_size_is_told(tmp_path):
    with pytest.raises(offspan.OffspanError, match=r"observations of shape \(4,\), not \(5,\)"):
        loaded(tmp_path, tanh_network())(jnp.zeros(5))


def test_the_first_output_is_the_action_and_the_rest_is_not_read(tmp_path):
    """As of Stable-Baselines3's PPO, whose graph has the value and the log-probability of a random action too."""
    nodes = [node("MatMul", "o W", "u"), node("RandomNormalLike", "o", "noise"), node("MatMul", "noise V", "value")]
    model = graph_of(nodes, {"W": W, "V": normal(4, 1)}, outputs="u value")
    assert list(assert_agrees(tmp_path, model).weights) == ["W"]
    assert "'RandomNormalLike'" in error_of(saved(tmp_path, graph_of(nodes, {"W": W, "V": normal(4, 1)}, outputs="value u")))


def test_initializers_among_the_inputs_are_weights(tmp_path):
    """As files of before IR version 4 have them."""
    assert_agrees(tmp_path, graph_of([node("MatMul", "o W")], {"W": W}, inputs={"W": (4, 3), "o": ("batch", 4)}))


def test_gradients_agree_with_finite_differences(tmp_path):
    policy = jax.tree.map(lambda weight: weight.astype(float), loaded(tmp_path, tanh_network()))
    o, step = jnp.asarray(OBSERVATIONS[0], float), 1e-6
    along = jax.tree.map(lambda weight: jnp.asarray(normal(*weight.shape), float), policy)
    direction = jnp.asarray(normal(4), float)

    def loss(policy, o):
        return jnp.sum(policy(o) ** 2)

    def moved(size):
        return jax.tree.map(lambda weight, change: weight + size * change, policy, along)

    by_weights, by_observation = jax.grad(loss, argnums=(0, 1))(policy, o)
    slope = sum(jnp.vdot(g, change) for g, change in zip(jax.tree.leaves(by_weights), jax.tree.leaves(along), strict=True))
    assert abs(slope) > 0.1
    assert jnp.linalg.norm(by_observation) > 0.1
    np.testing.assert_allclose(slope, (loss(moved(step), o) - loss(moved(-step), o)) / (2 * step), rtol=1e-6)
    difference = (loss(policy, o + step * direction) - loss(policy, o - step * direction)) / (2 * step)
    np.testing.assert_allclose(by_observation @ direction, difference, rtol=1e-6)


def test_the_slope_of_a_square_by_pow_is_finite_for_negative_numbers(tmp_path):
    policy = loaded(tmp_path, graph_of([node("Pow", "o two")], {"two": np.float32(2.0)}))
    np.testing.assert_allclose(jax.grad(lambda o: policy(o).sum())(jnp.array([-3.0, 0.0, 0.5, 2.0])), [-6.0, 0.0, 1.0, 4.0])


def test_two_loads_are_equal_and_compile_once(tmp_path):
    path = saved(tmp_path, graph_of(SINGLE["Slice"], {"minus": ints(-1), "least": TENSORS["least"], "one": ints(1)}))
    first, second = load_policy(path), load_policy(path)
    traced = []

    @jax.jit
    def call(policy, o):
        traced.append(policy)
        return policy(o)

    o = jnp.arange(4.0)
    np.testing.assert_array_equal(call(first, o), call(second, o))
    assert len(traced) == 1
    assert eqx.tree_equal(first, second)
    other = loaded(tmp_path, graph_of(SINGLE["Slice"], {"minus": ints(-1), "least": ints(-3), "one": ints(1)}))
    assert not eqx.tree_equal(first, other)
    assert (call(first, o).tolist(), call(other, o).tolist()) == ([3.0, 2.0, 1.0, 0.0], [3.0, 2.0])


def test_weights_follow_the_precision_of_jax(tmp_path):
    model = graph_of([node("MatMul", "o W")], {"W": W.astype(float)}, kind=TensorProto.DOUBLE)
    assert loaded(tmp_path, model).weights["W"].dtype == jnp.float64
    o = jnp.array([0.1, 1 / 3, 2.0, -0.7])
    assert loaded(tmp_path, graph_of([node("Cast", to=TensorProto.FLOAT)]))(o).tolist() == o.tolist()  # not rounded to float32
    assert loaded(tmp_path, graph_of(SINGLE["Constant-float"]))(o.astype(jnp.float32)).dtype == jnp.float32
    with jax.enable_x64(False):
        policy = loaded(tmp_path, model)
        assert policy.weights["W"].dtype == jnp.float32
        assert policy(jnp.zeros(4)).dtype == jnp.float32
        chosen = loaded(tmp_path, graph_of([node("ArgMax", axis=1)]))(jnp.array([0.0, 3.0, 1.0, 2.0]))
        assert (chosen.dtype, chosen.tolist()) == (jnp.float32, [1.0])
        whole = loaded(tmp_path, graph_of(SINGLE["Cast"]))(jnp.array([1.5, -1.5, 0.2, 2.0]))  # by int64, which jax does not have here
        assert whole.tolist() == [1.0, -1.0, 0.0, 2.0]


def test_controls_are_clipped_not_rescaled(tmp_path):
    model = graph_of([node("MatMul", "o W")], {"W": np.eye(4, 2, dtype=np.float32)})
    o = jnp.array([-5.0, 0.25, 1.0, 1.0])
    assert loaded(tmp_path, model, low=-2.0, high=2.0)(o).tolist() == [-2.0, 0.25]
    assert loaded(tmp_path, model, low=[-2.0, 1.0], high=[2.0, 3.0])(o).tolist() == [-2.0, 1.0]
    path = saved(tmp_path, model)
    assert "bounds for 3 controls, but the policy has 2" in error_of(path, low=[0.0, 0.0, 0.0], high=1.0)
    for bounds, said in {(0.0, None): "pass both or neither", (1.0, 0.0): "low < high"}.items():
        with pytest.raises(offspan.OffspanError, match=said):
            load_policy(path, low=bounds[0], high=bounds[1])


REFUSED = {
    "unknown": (graph_of([node("Einsum", equation="bi->bi")]), "has the operation 'Einsum', which .*`HostController`"),
    "subgraph": (
        graph_of([node("If", "c", then_branch=tanh_network().graph, else_branch=tanh_network().graph)], {"c": np.array(True)}),
        "the operation 'If'",
    ),
    "foreign": (graph_of([node("Relu", domain="com.acme")]), "the operation 'Relu' of the domain 'com.acme'"),
    "machine-learning": (graph_of([node("Scaler", domain="ai.onnx.ml")]), "the operation 'Scaler' of the domain 'ai.onnx.ml'"),
    "allocation": (graph_of([node("ConstantOfShape", "n")], {"n": ints(2**40)}), "the operation 'ConstantOfShape'"),
    "two inputs": (graph_of([node("Add", "o p")], inputs={"o": (1, 4), "p": (1, 4)}), r"2 inputs \('o', 'p'\)"),
    "no input": (graph_of([node("Identity", "W")], {"W": W}, inputs={"W": (4, 3)}), r"0 inputs \(none\)"),
    "integer input": (graph_of([node("Neg")], kind=TensorProto.INT64), "its input 'o' must be floating-point"),
    "image": (graph_of([node("Flatten")], inputs={"o": (1, 3, 8, 8)}), r"its input 'o' must be .* of shape \(batch, k\)"),
    "rank 3": (graph_of([node("Unsqueeze", "o one")], {"one": ints(1)}), r"its output has shape \(1, 1, 4\), but must be one vector"),
    "rank 0": (graph_of([node("ReduceSum", keepdims=0)]), r"its output has shape \(\), but"),
    "two rows": (graph_of([node("Reshape", "o s")], {"s": ints(2, 2)}), r"its output has shape \(2, 2\), but"),
    "empty": (graph_of([node("Slice", "o one one one")], {"one": ints(1)}), r"its output has shape \(1, 0\), but"),
    "unbatched": (graph_of([node("Reshape", "o s")], {"s": ints(2, 2)}, inputs={"o": (4,)}), r"but must be one vector, \(m,\)"),
    "sizes": (graph_of([node("MatMul", "o W")], {"W": normal(5, 3)}), "its operation MatMul fails"),
    "index": (graph_of([node("Gather", "o i", axis=1)], {"i": ints(4)}), "Gather fails .*not among the 4"),
    "negative split": (graph_of([node("Split", "o s", "u b", axis=1)], {"s": ints(5, -1)}), "Split fails .*cannot be split"),
    "split": (graph_of([node("Split", "o s", "u b", axis=1)], {"s": ints(3, 3)}), "Split fails .*cannot be split"),
    "attribute": (graph_of([node("Relu", slope=0.1)]), "Relu fails .*slope"),
    "undefined": (graph_of([node("Add", "o nothing")]), "nothing computes 'nothing'"),
    "second output": (graph_of([node("Dropout", "o", "x mask"), node("Cast", "mask", to=1)]), "Cast fails .*mask"),
    "order": (graph_of([node("Neg", "x"), node("Abs", "o", "x")]), "nothing computes 'x'"),
    "cycle": (graph_of([node("Add", "o y", "u"), node("Neg", "u", "y")]), "nothing computes 'y'"),
    "dynamic shape": (
        graph_of([node("Cast", "o", "s", to=TensorProto.INT64), node("Reshape", "o s")]),
        "Reshape fails .*depends on the observation",
    ),
    "weight as a shape": (
        graph_of([node("Cast", "W", "s", to=TensorProto.INT64), node("Reshape", "o s")], {"W": np.array([1, 4], np.float32)}),
        "Reshape fails .*the weights",
    ),
    "tensor attribute": (graph_of([node("Dropout", ratio=numpy_helper.from_array(W))]), "cannot be used"),
    "bfloat16": (
        graph_of([node("Constant", "", "c", value=helper.make_tensor("c", TensorProto.BFLOAT16, [4], [1.0] * 4)), node("Add", "o c")]),
        "its tensor 'c' has the type bfloat16",
    ),
    "strings": (graph_of([node("Constant", "", "c", value_string="a"), node("Add", "o c")]), "its tensor 'c' has the type"),
    "NaN": (graph_of([node("Add", "o c")], {"c": np.full(4, np.nan, np.float32)}), "its tensor 'c' has entries that are NaN"),
    "old": (graph_of([node("Relu")], opset=6), "opset 7 or newer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_that_does_not_fit_is_refused_when_it_is_loaded(tmp_path, name):
    model, said = REFUSED[name]
    assert re.search(said, error_of(saved(tmp_path, model)))


def doubling(operation, tensors, **attributes):
    """x_60 of 2^60 times the entries of x_0, from a file of a few kilobytes."""
    nodes = [node(operation, f"x{i} x{i}", f"x{i + 1}", **attributes) for i in range(60)]
    return graph_of([*nodes, node("Gather", "o x60", axis=1)], tensors)


HUGE = {
    "constants": (doubling("Concat", {"x0": ints(0, 1)}, axis=0), "constants are too large"),
    "weights": (
        graph_of([*(node("Concat", f"x{i} x{i}", f"x{i + 1}", axis=0) for i in range(60)), node("MatMul", "o x60")], {"x0": normal(4, 1)}),
        f"more than {LARGEST} numbers",
    ),
    "broadcast": (
        graph_of(
            [node("Add", "a b", "c"), node("Add", "c d", "e"), node("Gather", "o e", axis=1)],
            {"a": np.zeros((3000, 1, 1), np.int64), "b": np.zeros((1, 3000, 1), np.int64), "d": np.zeros((1, 1, 3000), np.int64)},
        ),
        "constants are too large",
    ),
    "gather": (
        graph_of(
            [node("Gather", "W i", "x"), node("ReduceSum", "x", "y"), node("Add", "o y")],
            {"W": normal(1, 9000), "i": np.zeros(9000, np.int32)},
        ),
        f"more than {LARGEST} numbers",
    ),
    "empty axes": (
        graph_of(
            [node("MatMul", "a b", "c"), node("ReduceSum", "c", "s"), node("Add", "o s")],
            {"a": np.zeros((2**25, 0), np.float32), "b": np.zeros((0, 2**25), np.float32)},
        ),
        "constants are too large",
    ),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_small_file_that_asks_for_much_memory_is_refused(tmp_path, name):
    model, said = HUGE[name]
    path = saved(tmp_path, model)
    assert path.stat().st_size < 100_000
    assert said in error_of(path)


def test_a_graph_of_any_size_computes_nothing_before_it_is_checked(tmp_path, monkeypatch):
    traced = []

    def recorded(xp, a, b):
        traced.append(isinstance(a, Tracer))
        return jnp.matmul(a, b)

    monkeypatch.setitem(OPERATIONS, "MatMul", recorded)
    nodes = [node("MatMul", "a b", "c"), node("ReduceSum", "c", "s"), node("Add", "o s")]
    policy = loaded(tmp_path, graph_of(nodes, {"a": normal(9000, 1), "b": normal(1, 9000)}, inputs={"o": ("batch", "k")}))
    with pytest.raises(offspan.OffspanError, match=f"more than {LARGEST} numbers"):
        policy(jnp.zeros(4))
    assert traced == [True]


def test_a_tensor_whose_shape_is_not_that_of_its_data_is_refused(tmp_path):
    for dims, said in {(3, 3): "cannot be used", (0, 2**40): "more than", (2**62, 2**62): "more than"}.items():
        model = graph_of([node("MatMul", "o W")], {"W": W})
        del model.graph.initializer[0].dims[:]
        model.graph.initializer[0].dims.extend(dims)
        assert said in error_of(saved(tmp_path, model))


def test_a_deep_graph_is_no_deep_recursion(tmp_path):
    depth = 3 * sys.getrecursionlimit()
    model = graph_of([node("Neg", f"x{i}" if i else "o", f"x{i + 1}") for i in range(depth)], outputs=f"x{depth}")
    assert loaded(tmp_path, model)(jnp.arange(4.0)).tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("where", ["initializer", "Constant"])
def test_data_in_other_files_is_refused(tmp_path, where):
    constant = node("Constant", "", "W", value=numpy_helper.from_array(W, "W"))
    model = graph_of([node("MatMul", "o W")], {"W": W}) if where == "initializer" else graph_of([constant, node("MatMul", "o W")])
    path = tmp_path / "policy.onnx"
    options = {"location": "weights.bin", "size_threshold": 0, "convert_attribute": True}
    onnx.save_model(model, path, save_as_external_data=True, **options)
    assert (tmp_path / "weights.bin").stat().st_size == W.nbytes
    for _ in range(2):  # whether or not there is such a file
        assert "its tensor 'W' is stored in another file" in error_of(path)
        (tmp_path / "weights.bin").unlink(missing_ok=True)


def test_a_file_cut_short_or_spoilt_is_an_error_or_another_policy(tmp_path):
    whole = tanh_network().SerializeToString()
    path = tmp_path / "policy.onnx"
    for length in range(0, len(whole) - 1, 11):
        path.write_bytes(whole[:length])
        error_of(path)
    told = 0
    rng = np.random.default_rng(1)
    for _ in range(60):
        spoilt = np.frombuffer(whole, np.uint8).copy()
        spoilt[rng.integers(len(spoilt), size=3)] = rng.integers(256, size=3)
        path.write_bytes(spoilt.tobytes())
        try:
            load_policy(path)
        except offspan.OffspanError:
            told += 1
    assert 0 < told < 60


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (self.path.touch, ())


@pytest.mark.parametrize("suffix", [".zip", ".pt", ".pth", ".pkl", ".npz", "", ".onnx", ".safetensors"])
def test_no_pickle_is_opened(tmp_path, suffix):
    path = tmp_path / f"policy{suffix}"
    path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    known = suffix in (".onnx", ".safetensors")
    assert ("is not a valid" if known else "torch.onnx.export(") in error_of(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("suffix", [".onnx", ".safetensors"])
def test_a_file_that_is_missing_or_a_package_that_is_not_installed(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"policy{suffix}"
    assert "there is no file" in error_of(path)
    path.mkdir()
    assert "there is no file" in error_of(path)
    path.rmdir()
    path.write_bytes(b"")
    package = {".onnx": "onnx", ".safetensors": "safetensors"}[suffix]
    monkeypatch.setitem(sys.modules, package, None)
    assert f"needs the package {package}; install it with `pip install 'offspan[policies]'`" in error_of(path)


def layers_of(network, names):
    arrays = {}
    for name, (weight, bias) in zip(names, network.layers, strict=True):
        arrays |= {f"{name}.weight": np.asarray(weight), f"{name}.bias": np.asarray(bias)}
    return arrays


@pytest.mark.parametrize("names", [["0", "1", "2"], ["0", "2", "10"], ["actor.net.0", "actor.net.2", "actor.net.4"]], ids=str)
@pytest.mark.parametrize("activation", [None, "tanh"])
def test_layers_of_a_safetensors_file(tmp_path, names, activation):
    network = offspan.MLP.init(jax.random.key(0), 4, 2, width=5, depth=3, activation=activation or "relu")
    path = tmp_path / "policy.safetensors"
    save_file(layers_of(network, names), path, metadata={"format": "pt"} | ({"activation": activation} if activation else {}))
    if activation is None:
        assert "does not name the activation between its layers; pass `activation=`" in error_of(path)
        assert eqx.tree_equal(load_policy(path, activation="relu"), network)
        return
    assert eqx.tree_equal(load_policy(path), network)
    assert eqx.tree_equal(load_policy(path, activation="tanh"), network)
    assert "`activation` is 'elu', but the file names 'tanh'" in error_of(path, activation="elu")
    assert "there is no `activation` ''" in error_of(path, activation="")
    save_file(layers_of(network, names), path, metadata={"activation": "Tanh"})
    assert eqx.tree_equal(load_policy(path, activation="tanh"), network), "a name of another library"
    save_file(layers_of(network, names), path, metadata={"activation": "tanh"})
    o = 100 * jnp.asarray(OBSERVATIONS[0], float)
    clipped = load_policy(path, low=[-0.2, -0.1], high=0.2)(o)
    np.testing.assert_array_equal(clipped, jnp.clip(network(o), jnp.array([-0.2, -0.1]), 0.2))
    assert clipped.tolist() != network(o).tolist()
    assert "bounds for 3 controls" in error_of(path, low=[0.0] * 3, high=1.0)


RELU = {"activation": "relu"}
ONE = {"0.weight": np.ones((1, 2)), "0.bias": np.zeros(1)}
UNFIT = {
    "nothing": ({}, {}, r"the tensors none, but must have the layers"),
    "no bias": ({"0.weight": np.ones((1, 2))}, {}, r"the tensors '0\.weight', but"),
    "others": (ONE | {"log_std": np.zeros(1)}, {}, "'log_std'"),
    "two prefixes": (ONE | {"value.1.weight": np.ones((1, 1)), "value.1.bias": np.ones(1)}, {}, r"'value\.1\.bias'"),
    "two weights": ({"0.weight": np.ones((1, 2)), "00.weight": np.ones((1, 2))}, {}, r"'0\.weight', '00\.weight'"),
    "twice": (ONE | {"00.weight": np.ones((1, 2)), "00.bias": np.ones(1)}, {}, r"'00\.bias'"),
    "widths": (ONE | {"1.weight": np.ones((1, 2)), "1.bias": np.ones(1)}, RELU, r"`layers\[1\] W` has shape \(1, 2\)"),
    "normalisation": (ONE | {"1.weight": np.ones(1), "1.bias": np.ones(1)}, RELU, r"`layers\[1\] W` has shape \(1,\)"),
    "NaN": ({**ONE, "0.bias": np.array([np.nan])}, {}, "NaN"),
    "activation": (ONE, {"activation": "tan"}, r"'tan' \(did you mean 'tanh'\?\)"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_safetensors_file_of_something_else_names_its_tensors(tmp_path, name):
    tensors, metadata, said = UNFIT[name]
    path = tmp_path / "policy.safetensors"
    save_file(tensors, path, metadata=metadata or None)
    assert re.search(said, error_of(path))


def test_a_safetensors_file_cut_short_is_an_error(tmp_path):
    path = tmp_path / "policy.safetensors"
    save_file(ONE, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert "is not a valid safetensors file" in error_of(path)


def test_a_policy_controls_a_problem_and_is_trained(tmp_path):
    """J of the file's network is that of the same network as an `MLP`; so is J of one that sees cos θ, sin θ and the velocity."""
    problem, x0s = offspan.Pendulum(horizon=5), np.array([[2.6, 0.0], [-2.0, 0.5]])

    def observe(x):
        return jnp.array([jnp.cos(x[0]), jnp.sin(x[0]), x[1]])

    for k, seen_by in {2: lambda policy: policy, 3: lambda policy: offspan.Observed(policy, observe)}.items():
        first, second = (normal(6, k), normal(6)), (normal(1, 6), normal(1))
        nodes = [node("Gemm", "o W1 b1", "z", transB=1), node("Tanh", "z", "h"), node("Gemm", "h W2 b2", transB=1)]
        tensors = {"W1": first[0], "b1": first[1], "W2": second[0], "b2": second[1]}
        policy = seen_by(loaded(tmp_path, graph_of(nodes, tensors, inputs={"o": ("batch", k)})))
        network = seen_by(offspan.MLP([first, second], "tanh"))
        np.testing.assert_allclose(offspan.cost(problem, policy, x0s), offspan.cost(problem, network, x0s), rtol=1e-6)
        run = offspan.train(problem, policy, x0s, optimizer=optax.sgd(1e-3), iterations=3)
        assert offspan.cost(problem, run.controller, x0s) < offspan.cost(problem, policy, x0s)


def test_a_policy_that_pytorch_exported_is_what_onnxruntime_computes():
    """PPO of Stable-Baselines3 (examples/policies/train_ppo_pendulum.py), on 1,000 observations."""
    path = Path(__file__).parent.parent / "examples" / "policies" / "ppo_pendulum.onnx"
    session = onnxruntime.InferenceSession(path)
    angle, rate = np.random.default_rng(0).uniform([[-np.pi], [-8]], [[np.pi], [8]], (2, 1000))
    observations = np.stack([np.cos(angle), np.sin(angle), rate], axis=1).astype(np.float32)
    expected = np.concatenate([np.asarray(session.run(None, {session.get_inputs()[0].name: one[None]})[0]) for one in observations])
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(jax.vmap(load_policy(path))(jnp.asarray(observations)), expected, atol=1e-5)
