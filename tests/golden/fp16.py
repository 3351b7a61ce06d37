#!/usr/bin/env python3
"""Golden results in half precision: the exact value of each operation, rounded once, ties to even.

    python3 -m venv venv && venv/bin/pip install mpmath==1.3.0 gmpy2 'numpy==2.3.5'
    venv/bin/python tests/golden/fp16.py

A line of fp16.txt has an operation, its arguments (`name=value`), and
  elementwise  for each 1,024 of all 65,536 numbers in order of their bits, 32-bit FNV-1a of the results' bytes
  pow          the same for 8,192 pairs, x and then y from `bits`
  the others   the bits of all results, one behind the other
An argument is a number in half precision (its bits), `true` or `false`, a word, or
  #1, #[0,1]   integers
  ~4+5:2x3     an array: of `seeded.py` with seed 16, the argument's name and scale 4, rounded, and 5 added, rounded
  causal:2x3   truth values, which hold up to the diagonal
  bias:2x3     0 where they hold, else minus infinity
Any NaN counts as 7e00. Values are computed with 200 bits; at zeros, infinities and outside of an operation's domain
the formula is taken in IEEE double precision, of which only signs, zeros, infinities and NaNs remain.
"""

import math
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import seeded
from mpmath import mp, mpf

mp.prec = 200
np.seterr(all="ignore")
NAN = 0x7E00
TINY = mpf(2) ** -200


def to_half(value):
    """The bits of `value`, a float or an mpf, rounded once to half precision."""
    if not isinstance(value, mpf):
        value = float(value)
        if math.isnan(value):
            return NAN
        if value == 0 or math.isinf(value):
            return int(np.float16(value).view(np.uint16))
        value = mpf(value)
    sign, man, exp, bits = value._mpf_
    sign, man, exp = int(sign), int(man), int(exp)
    if man == 0 or exp + man.bit_length() < -25:
        return sign << 15
    # The last bit of the result is worth 2^last.
    last = max(exp + man.bit_length() - 11, -24)
    shift = last - exp
    if shift <= 0:
        whole = man << -shift
    else:
        whole, rest = man >> shift, man & ((1 << shift) - 1)
        half = 1 << (shift - 1)
        whole += rest > half or (rest == half and whole & 1)
    # Subnormal numbers and carries fall out of adding the fraction to the exponent.
    magnitude = whole if last == -24 else ((last + 24) << 10) + whole
    return sign << 15 | min(magnitude, 0x7C00)


def check_rounding():
    for bits in [*range(0, 0x7C00, 7), 0x3FF, 0x400, 0x7BFF]:
        x = mpf(float(np.uint16(bits).view(np.float16)))
        assert to_half(x) == bits and to_half(-x) == bits | 0x8000 or bits == 0
    assert to_half(mpf(65519)) == 0x7BFF and to_half(mpf(65520)) == 0x7C00
    assert to_half(mpf(2) ** -25) == 0 and to_half(mpf(2) ** -25 + TINY) == 1


def fnv(values):
    h = 0x811C9DC5
    for v in values:
        for byte in (v & 255, v >> 8):
            h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{h:08x}"


def digests(values):
    return " ".join(fnv(values[i : i + 1024]) for i in range(0, len(values), 1024))


def constant(value):
    return float(np.float16(value))


A, B = constant(0.3), constant(1.7)
EPSILON = constant(1e-3)


def sigmoid(x):
    return 1 / (1 + mp.exp(-x))


def softplus(x):
    return mp.log1p(mp.exp(x))


def gelu(x):
    return x / 2 * mp.erfc(-x / mp.sqrt(2)) if abs(x) < 30 else max(x, -TINY)


def tanh_argument(x, root):
    return root * (x + type(x)("0.044715") * x**3)


def of_double(function):
    return lambda x: function(np.float64(x))


def inside(low, high, function):
    """The function within its domain; None elsewhere."""
    return lambda x: function(x) if low < x < high else None


def plus_epsilon(function):
    return lambda x: function(x + mpf(EPSILON)) if x + mpf(EPSILON) > 0 else None


def float_sigmoid(x):
    return 1 / (1 + np.exp(-x))


# Operation, arguments, the exact function or None (the formula is exact in double precision), the formula.
UNARY = [
    ("abs", {}, None, np.abs),
    ("acos", {}, inside(-1, 1, mp.acos), np.arccos),
    ("asin", {}, inside(-1, 1, mp.asin), np.arcsin),
    ("atan", {}, mp.atan, np.arctan),
    ("atanh", {}, inside(-1, 1, mp.atanh), np.arctanh),
    ("ceil", {}, None, np.ceil),
    ("cos", {}, mp.cos, np.cos),
    ("cosh", {}, mp.cosh, np.cosh),
    ("erf", {}, lambda x: mp.erf(x) if abs(x) < 30 else mp.sign(x) * (1 - TINY), math.erf),
    ("exp", {}, mp.exp, np.exp),
    ("exp2", {}, lambda x: mpf(2) ** x, np.exp2),
    ("floor", {}, None, np.floor),
    ("relu", {}, None, lambda x: 0.0 if x < 0 else x),
    ("relu6", {}, None, lambda x: 0.0 if x < 0 else 6.0 if x > 6 else x),
    ("round", {}, None, np.round),
    ("sigmoid", {}, sigmoid, float_sigmoid),
    ("sign", {}, None, lambda x: x if x == 0 else np.sign(x)),
    ("silu", {}, lambda x: x * sigmoid(x), lambda x: x * float_sigmoid(x)),
    ("sin", {}, mp.sin, np.sin),
    ("sinh", {}, mp.sinh, np.sinh),
    ("softplus", {}, softplus, lambda x: np.log1p(np.exp(x))),
    ("softsign", {}, lambda x: x / (1 + abs(x)), lambda x: x / (1 + np.abs(x))),
    ("sqrt", {}, inside(0, mp.inf, mp.sqrt), np.sqrt),
    ("square", {}, lambda x: x * x, np.square),
    ("tan", {}, mp.tan, np.tan),
    ("tanh", {}, mp.tanh, np.tanh),
    ("inverse", {"epsilon": EPSILON}, lambda x: 1 / (x + EPSILON) if x != -EPSILON else None, lambda x: 1 / (x + EPSILON)),
    ("log", {"epsilon": EPSILON}, plus_epsilon(mp.log), lambda x: np.log(x + EPSILON)),
    ("rsqrt", {"epsilon": EPSILON}, plus_epsilon(lambda x: 1 / mp.sqrt(x)), lambda x: 1 / np.sqrt(x + EPSILON)),
    ("clip", {"alpha": -A, "beta": B}, None, lambda x: -A if x < -A else B if x > B else x),
    ("gelu", {"mode": "EXACT"}, gelu, lambda x: x / 2 * math.erfc(-x / math.sqrt(2))),
    (
        "gelu",
        {"mode": "TANH_APPROXIMATION"},
        lambda x: x * sigmoid(2 * tanh_argument(x, mp.sqrt(2 / mp.pi))),
        lambda x: x * float_sigmoid(2 * tanh_argument(x, math.sqrt(2 / math.pi))),
    ),
    (
        "gelu",
        {"mode": "SIGMOID_APPROXIMATION"},
        lambda x: x * sigmoid(mpf("1.702") * x),
        lambda x: x * float_sigmoid(1.702 * x),
    ),
    ("clamped_relu", {"alpha": A, "beta": B}, None, lambda x: np.minimum(A * x if x < 0 else x, B)),
    ("elu", {"alpha": A}, lambda x: A * mp.expm1(x) if x < 0 else x, lambda x: A * np.expm1(x) if x < 0 else x),
    ("leaky_relu", {"alpha": A}, None, lambda x: A * x if x < 0 else x),
    ("linear_activation", {"alpha": A, "beta": B}, lambda x: A * x + B, lambda x: A * x + B),
    ("scaled_tanh", {"alpha": B, "beta": A}, lambda x: B * mp.tanh(A * x), lambda x: B * np.tanh(A * x)),
    (
        "sigmoid_hard",
        {"alpha": A, "beta": constant(0.5)},
        lambda x: min(max(A * x + mpf("0.5"), mpf(0)), mpf(1)),
        lambda x: np.clip(A * x + 0.5, 0.0, 1.0),
    ),
    ("threshold", {"alpha": A}, None, lambda x: np.maximum(x, A)),
    ("thresholded_relu", {"alpha": A}, None, lambda x: 0.0 if x < A else x),
    ("prelu", {"alpha": A}, None, lambda x: A * x if x < 0 else x),
    ("softplus_parametric", {"alpha": A, "beta": B}, lambda x: A * softplus(B * x), lambda x: A * np.log1p(np.exp(B * x))),
]


def unary(exact, formula):
    results = []
    for x in np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64):
        value = exact(mpf(float(x))) if exact and np.isfinite(x) and x != 0 else None
        results.append(to_half(of_double(formula)(x) if value is None else value))
    return results


def bits(name, count):
    """Numbers of all kinds: their bits are as likely one as the other."""
    state = seeded.fnv1a64(name) ^ 16
    with np.errstate(over="ignore"):
        return (seeded.splitmix64(state, count) >> np.uint64(48)).astype(np.uint16)


def power(x, y):
    if not (np.isfinite(x) and np.isfinite(y)) or x == 0 or (x < 0 and y != round(y)):
        return np.power(np.float64(x), np.float64(y))
    size = y * math.log2(abs(x))
    if abs(size) > 100:
        return math.copysign(math.inf if size > 0 else 0.0, -1.0 if x < 0 and y % 2 else 1.0)
    return mp.power(mpf(float(x)), mpf(float(y)))


def pairs():
    x = bits("x", 8192).view(np.float16).copy()
    # Most powers of numbers of all sizes are beyond the range; let half of the bases be near one.
    x[::2] = (1 + np.abs(x[::2].view(np.uint16).astype(np.int64) % 512) / 1024).astype(np.float16)
    y = bits("y", 8192).view(np.float16)
    return [to_half(power(float(a), float(b))) for a, b in zip(x, y)]


class Seeded:
    """An argument `scale * u + offset` of that shape, the same on both sides."""

    def __init__(self, *shape, scale=4, offset=0):
        self.shape, self.scale, self.offset = shape, scale, offset

    def __str__(self):
        offset = f"+{self.offset}" if self.offset else ""
        return f"~{self.scale}{offset}:{'x'.join(map(str, self.shape))}"

    def value(self, name):
        values = seeded.tensor(16, name, math.prod(self.shape), float(self.scale)).astype(np.float16)
        if self.offset:
            values = (values.astype(np.float64) + self.offset).astype(np.float16)
        return exact_array(values.astype(np.float64)).reshape(self.shape)


class Causal:
    """A mask of attention, of truth values or to be added."""

    def __init__(self, word, *shape):
        self.word, self.shape = word, shape

    def __str__(self):
        return f"{self.word}:{'x'.join(map(str, self.shape))}"

    def value(self, _):
        hidden = np.where(np.tri(*self.shape), 0.0, -math.inf)
        return exact_array(hidden.ravel()).reshape(self.shape)


class Half:
    """A scalar."""

    def __init__(self, value):
        self.number = constant(value)

    def __str__(self):
        return f"{to_half(self.number):04x}"

    def value(self, _):
        return mpf(self.number)


def exact_array(values):
    exact = np.empty(values.shape, dtype=object)
    exact[:] = [mpf(float(v)) for v in values]
    return exact


def text(value):
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f"#{value}"
        case list():
            return f"#[{','.join(map(str, value))}]"
        case _:
            return str(value)


def each(function):
    return np.vectorize(function, otypes=[object])


root, exponential, logarithm = each(mp.sqrt), each(mp.exp), each(mp.log)


def soft_maximum(x, axis=-1):
    exp = exponential(x)
    return exp / exp.sum(axis=axis, keepdims=True)


def normalised(x, axes, epsilon):
    count = math.prod(x.shape[a] for a in axes)
    away = x - x.sum(axis=axes, keepdims=True) / count
    return away / root((away * away).sum(axis=axes, keepdims=True) / count + epsilon)


def by_channel(values, x):
    """The numbers of channels, beside x [n, C, ...]."""
    return values.reshape(-1, *[1] * (x.ndim - 2)) if isinstance(values, np.ndarray) else values


def affine(x, gamma=1, beta=0):
    return x * by_channel(gamma, x) + by_channel(beta, x)


def layer_norm(x, axes=None, gamma=1, beta=0, epsilon=mpf("1e-5")):
    axes = tuple(range(x.ndim) if axes is None else axes)

    def along(values):
        sizes = [x.shape[a] if a in axes else 1 for a in range(x.ndim)]
        return values.reshape(sizes) if isinstance(values, np.ndarray) else values

    return normalised(x, axes, epsilon) * along(gamma) + along(beta)


def instance_norm(x, gamma=1, beta=0, epsilon=mpf("1e-5")):
    return affine(normalised(x, tuple(range(2, x.ndim)), epsilon), gamma, beta)


def batch_norm(x, mean, variance, gamma=1, beta=0, epsilon=mpf("1e-5")):
    return affine((x - by_channel(mean, x)) / root(by_channel(variance, x) + epsilon), gamma, beta)


def l2_norm(x, epsilon=mpf("1e-6")):
    return x / root((x * x).sum(axis=(-3, -2, -1), keepdims=True) + epsilon)


def local_response_norm(x, size, alpha=mpf("1e-4"), beta=mpf("0.75"), k=mpf(1)):
    # Of an even size one channel more lies before.
    sums = [
        (x[:, max(c - size // 2, 0) : c + (size + 1) // 2] ** 2).sum(axis=1) for c in range(x.shape[1])
    ]
    return x / each(lambda s: mp.power(k + alpha * s / size, beta))(np.stack(sums, axis=1))


def attention(query, key, value, attn_mask=0):
    scores = query @ key.swapaxes(-1, -2) / mp.sqrt(query.shape[-1])
    return soft_maximum(scores + attn_mask) @ value


def reduced(function):
    return lambda x, axes=None, keep_dims=False: function(
        x, axis=tuple(range(x.ndim) if axes is None else axes), keepdims=keep_dims
    )


def prelu(x, alpha):
    return np.where(x < 0, x * by_channel(alpha, x), x)


def softplus_parametric(x, alpha, beta):
    return by_channel(alpha, x) * each(softplus)(by_channel(beta, x) * x)


GATES = {
    "sigmoid": each(sigmoid),
    "tanh": each(mp.tanh),
    "relu": each(lambda x: max(x, mpf(0))),
    "linear": lambda x: x,
    "hard_sigmoid": each(lambda x: min(max(x / 5 + mpf("0.5"), mpf(0)), mpf(1))),
}


def zeros(count):
    return exact_array(np.zeros(count))


def steps(x, direction):
    return range(len(x)) if direction == "forward" else reversed(range(len(x)))


def gathered(sequence, output_sequence, *last):
    """The results of a layer: what comes of each step or only of the last, and the last states."""
    first = np.stack([sequence[t] for t in sorted(sequence)]) if output_sequence else last[0][None]
    return np.concatenate([part.ravel() for part in (first, *last)])


def rnn(x, initial_h, weight_ih, weight_hh, bias=0, direction="forward", output_sequence=False, activation="tanh"):
    h, sequence = initial_h, {}
    for t in steps(x, direction):
        h = sequence[t] = GATES[activation](x[t] @ weight_ih.T + h @ weight_hh.T + bias)
    return gathered(sequence, output_sequence, h)


def gru(
    x, initial_h, weight_ih, weight_hh, bias=None, direction="forward", output_sequence=False,
    recurrent_activation="sigmoid", activation="tanh", reset_after=False, input_bias=None,
):  # fmt: skip
    h, sequence, n = initial_h, {}, weight_hh.shape[1]
    gate, new = GATES[recurrent_activation], GATES[activation]
    b = zeros(3 * n) if bias is None else bias
    more = zeros(3 * n) if input_bias is None else input_bias
    r, o, z = (slice(k * n, (k + 1) * n) for k in range(3))
    for t in steps(x, direction):
        own = x[t] @ weight_ih.T + more
        reset = gate(own[:, r] + h @ weight_hh[r].T + b[r])
        update = gate(own[:, z] + h @ weight_hh[z].T + b[z])
        if reset_after:
            fresh = new(own[:, o] + reset * (h @ weight_hh[o].T + b[o]))
        else:
            fresh = new(own[:, o] + (reset * h) @ weight_hh[o].T + b[o])
        h = sequence[t] = (1 - update) * fresh + update * h
    return gathered(sequence, output_sequence, h)


def lstm_direction(x, h, c, ih, hh, bias, peephole, order, gates, clip):
    sequence, n = {}, hh.shape[1]
    bias = zeros(4 * n) if bias is None else bias
    peep = zeros(3 * n) if peephole is None else peephole
    recurrent, cell, activation = gates
    confined = each(lambda v: v if clip is None else min(max(v, -clip), clip))
    for t in order:
        sums = x[t] @ ih.T + h @ hh.T + bias
        i, f, o, g = (sums[:, k * n : (k + 1) * n] for k in range(4))
        i, f = recurrent(confined(i + peep[:n] * c)), recurrent(confined(f + peep[n : 2 * n] * c))
        c = f * c + i * cell(confined(g))
        h = sequence[t] = recurrent(confined(o + peep[2 * n :] * c)) * activation(c)
    return sequence, h, c


def lstm(
    x, initial_h, initial_c, weight_ih, weight_hh, bias=None, peephole=None, weight_ih_back=None, weight_hh_back=None,
    bias_back=None, peephole_back=None, direction="forward", output_sequence=False, recurrent_activation="sigmoid",
    cell_activation="tanh", activation="tanh", clip=None,
):  # fmt: skip
    gates = [GATES[name] for name in (recurrent_activation, cell_activation, activation)]
    n = weight_hh.shape[1]
    runs = [(weight_ih, weight_hh, bias, peephole, "reverse" if direction == "reverse" else "forward")]
    if direction == "bidirectional":
        runs.append((weight_ih_back, weight_hh_back, bias_back, peephole_back, "reverse"))
    parts = []
    for d, (ih, hh, b, p, order) in enumerate(runs):
        own = slice(d * n, (d + 1) * n)
        parts.append(
            lstm_direction(x, initial_h[:, own], initial_c[:, own], ih, hh, b, p, steps(x, order), gates, clip)
        )
    sequence = {t: np.concatenate([part[0][t] for part in parts], axis=1) for t in range(len(x))}
    h, c = (np.concatenate([part[k] for part in parts], axis=1) for k in (1, 2))
    return gathered(sequence, output_sequence, h, c)


X = Seeded(2, 4, 8)
IMAGE = Seeded(2, 4, 3, 5)
CHANNELS = {"gamma": Seeded(4), "beta": Seeded(4)}
POSITIVE = Seeded(4, offset=5)


def recurrent(gates, directions=1, **more):
    """Arguments of a layer of width 4 over 3 steps of 2 sequences of width 3."""
    state = Seeded(2, 4 * directions, scale=1)
    weights = {"weight_ih": Seeded(4 * gates, 3, scale=0.5), "weight_hh": Seeded(4 * gates, 4, scale=0.5)}
    return {"x": Seeded(3, 2, 3), "initial_h": state, **weights, **more}


def lstm_arguments(**more):
    directions = 2 if more.get("direction") == "bidirectional" else 1
    args = recurrent(4, directions, **more)
    args["initial_c"] = Seeded(2, 4 * directions, scale=2)
    if directions == 2:
        args["weight_ih_back"], args["weight_hh_back"] = args["weight_ih"], args["weight_hh"]
    return args


# Operation, what it computes, arguments.
OTHERS = [
    ("softmax", soft_maximum, {"x": X}),
    ("softmax", soft_maximum, {"x": X, "axis": 1}),
    ("softmax", soft_maximum, {"x": Seeded(3, 40, scale=1000), "axis": 0}),
    ("softmax", soft_maximum, {"x": Seeded(3, 40, scale=30), "axis": -1}),
    ("layer_norm", layer_norm, {"x": X, "axes": [2], "gamma": Seeded(8), "beta": Seeded(8), "epsilon": Half(1e-3)}),
    ("layer_norm", layer_norm, {"x": X, "axes": [1], "gamma": Seeded(4), "beta": Seeded(4), "epsilon": Half(1e-5)}),
    ("layer_norm", layer_norm, {"x": X, "axes": [1, 2], "gamma": Seeded(4, 8), "beta": Seeded(4, 8)}),
    ("layer_norm", layer_norm, {"x": Seeded(2, 4, 8, scale=60000), "axes": [-1]}),
    ("layer_norm", layer_norm, {"x": Seeded(3, 7, scale=0.0001), "epsilon": Half(1e-7)}),
    ("instance_norm", instance_norm, {"x": X, **CHANNELS, "epsilon": Half(1e-3)}),
    ("instance_norm", instance_norm, {"x": IMAGE}),
    ("batch_norm", batch_norm, {"x": X, "mean": Seeded(4), "variance": POSITIVE, **CHANNELS, "epsilon": Half(1e-3)}),
    ("batch_norm", batch_norm, {"x": IMAGE, "mean": Seeded(4), "variance": POSITIVE}),
    ("l2_norm", l2_norm, {"x": X}),
    ("l2_norm", l2_norm, {"x": IMAGE, "epsilon": Half(0.01)}),
    ("l2_norm", l2_norm, {"x": Seeded(2, 2, 3, 5, scale=60000), "epsilon": Half(0.01)}),
    ("local_response_norm", local_response_norm, {"x": IMAGE, "size": 3}),
    (
        "local_response_norm",
        local_response_norm,
        {"x": X, "size": 2, "alpha": Half(0.3), "beta": Half(0.6), "k": Half(1.7)},
    ),
    ("local_response_norm", local_response_norm, {"x": X, "size": 9, "alpha": Half(2), "beta": Half(0.75), "k": Half(1)}),
    ("reduce_log_sum", reduced(lambda x, **more: logarithm(x.sum(**more))), {"x": Seeded(2, 4, 8, offset=5), "axes": [-1]}),
    ("reduce_log_sum", reduced(lambda x, **more: logarithm(x.sum(**more))), {"x": Seeded(2, 4, 8, offset=5), "axes": [0, 1], "keep_dims": True}),
    ("reduce_log_sum_exp", reduced(lambda x, **more: logarithm(exponential(x).sum(**more))), {"x": X, "axes": [-1]}),
    ("reduce_log_sum_exp", reduced(lambda x, **more: logarithm(exponential(x).sum(**more))), {"x": Seeded(2, 4, 8, scale=1000), "axes": [1], "keep_dims": True}),
    ("reduce_log_sum_exp", reduced(lambda x, **more: logarithm(exponential(x).sum(**more))), {"x": Seeded(5, 5, scale=0.01)}),
    ("prelu", prelu, {"x": IMAGE, "alpha": Seeded(4)}),
    ("softplus_parametric", softplus_parametric, {"x": IMAGE, "alpha": Seeded(4), "beta": Seeded(4)}),
    ("softplus_parametric", softplus_parametric, {"x": Seeded(2, 3, 9, scale=100), "alpha": Seeded(3), "beta": Seeded(3)}),
]  # fmt: skip
OTHERS += [
    ("scaled_dot_product_attention", attention, {"query": query, "key": key, "value": value, **mask})
    for query, key, value, mask in [
        (Seeded(2, 3, 4, 8), Seeded(2, 3, 6, 8), Seeded(2, 3, 6, 5), {}),
        (Seeded(2, 5, 7), Seeded(2, 4, 7), Seeded(2, 4, 3), {"attn_mask": Seeded(2, 5, 4)}),
        (Seeded(1, 2, 5, 8, scale=1), Seeded(1, 2, 5, 8, scale=1), Seeded(1, 2, 5, 4), {"attn_mask": Causal("causal", 5, 5)}),
        (Seeded(1, 2, 5, 8), Seeded(1, 2, 6, 8), Seeded(1, 2, 6, 4), {"attn_mask": Causal("bias", 5, 6)}),
        (Seeded(1, 3, 8, scale=200), Seeded(1, 6, 8, scale=200), Seeded(1, 6, 4, scale=60000), {}),
    ]
]  # fmt: skip
OTHERS += [("rnn", rnn, recurrent(1, **more)) for more in [
    {"output_sequence": True, "bias": Seeded(4, scale=1)},
    {"direction": "reverse", "activation": "relu"},
    {"output_sequence": True, "activation": "hard_sigmoid", "direction": "reverse"},
    {"output_sequence": True, "activation": "linear"},
]]  # fmt: skip
OTHERS += [("gru", gru, recurrent(3, **more)) for more in [
    {"output_sequence": True, "bias": Seeded(12, scale=1)},
    {"output_sequence": True, "reset_after": True, "bias": Seeded(12, scale=1), "input_bias": Seeded(12, scale=1)},
    {"direction": "reverse", "recurrent_activation": "hard_sigmoid", "activation": "relu"},
]]  # fmt: skip
OTHERS += [("lstm", lstm, lstm_arguments(**more)) for more in [
    {"output_sequence": True, "bias": Seeded(16, scale=1)},
    {"direction": "reverse", "peephole": Seeded(12, scale=1)},
    {
        "direction": "bidirectional", "output_sequence": True, "bias": Seeded(16, scale=1),
        "bias_back": Seeded(16, scale=1), "peephole": Seeded(12, scale=1), "peephole_back": Seeded(12, scale=1),
    },
    {"clip": Half(0.5), "output_sequence": True, "bias": Seeded(16, scale=1)},
    {"recurrent_activation": "hard_sigmoid", "cell_activation": "relu", "activation": "linear", "output_sequence": True},
]]  # fmt: skip


def other_line(index):
    name, function, args = OTHERS[index]
    values = {k: v.value(k) if hasattr(v, "value") else v for k, v in args.items()}
    bits = (f"{to_half(v):04x}" for v in function(**values).ravel())
    return " ".join([name, *(f"{k}={text(v)}" for k, v in args.items()), *bits])


def unary_line(index):
    name, args, exact, formula = UNARY[index]
    stated = [f"{k}={v if isinstance(v, str) else format(to_half(v), '04x')}" for k, v in args.items()]
    return " ".join([name, *stated, digests(unary(exact, formula))])


def main():
    check_rounding()
    with Pool(4) as pool:
        lines = pool.map(unary_line, range(len(UNARY)), chunksize=1)
        others = pool.map(other_line, range(len(OTHERS)), chunksize=1)
    lines += [f"pow {digests(pairs())}", *others]
    target = Path(__file__).with_name("fp16.txt")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
