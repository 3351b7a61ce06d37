#!/usr/bin/env python3
"""Golden results in half precision: the exact value of each operation, rounded once, ties to even.

    python3 -m venv venv && venv/bin/pip install mpmath==1.3.0 gmpy2 'numpy==2.3.5'
    venv/bin/python tests/golden/fp16.py

A line of fp16.txt has an operation, its constant arguments (`name=value`, in half precision, or a word), and
  elementwise  for each 1,024 of all 65,536 numbers in order of their bits, 32-bit FNV-1a of the results' bytes
  pow          the same for 8,192 pairs, x and then y from `bits`
  the others   the results themselves, for inputs (of reduce_log_sum, their magnitudes) of `seeded.py` with seed 16 and scale 4, 5 more for a variance
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


def array(name, *shape):
    values = seeded.tensor(16, name, math.prod(shape), 4.0).astype(np.float16).astype(np.float64)
    if name == "variance":
        values = (values + 5).astype(np.float16).astype(np.float64)
    exact = np.empty(values.shape, dtype=object)
    exact[:] = [mpf(float(v)) for v in values]
    return exact.reshape(shape)


root = np.vectorize(mp.sqrt, otypes=[object])
exponential = np.vectorize(mp.exp, otypes=[object])


def normalised(x, axes, epsilon):
    count = math.prod(x.shape[a] for a in axes)
    away = x - x.sum(axis=axes, keepdims=True) / count
    return away / root((away * away).sum(axis=axes, keepdims=True) / count + mpf(epsilon))


def by_channel(values):
    return values[None, :, None]


def others():
    x = array("x", 2, 4, 8)
    gamma, beta = array("gamma", 8), array("beta", 8)
    channel_gamma, channel_beta = array("gamma", 4), array("beta", 4)
    mean, variance = array("mean", 4), array("variance", 4)
    exp = exponential(x)
    yield "softmax", exp / exp.sum(axis=-1, keepdims=True)
    yield "layer_norm", normalised(x, (2,), EPSILON) * gamma + beta
    yield "instance_norm", normalised(x, (2,), EPSILON) * by_channel(channel_gamma) + by_channel(channel_beta)
    scaled = (x - by_channel(mean)) / root(by_channel(variance) + mpf(EPSILON))
    yield "batch_norm", scaled * by_channel(channel_gamma) + by_channel(channel_beta)
    last = {"axis": -1}
    yield "reduce_l1_norm", abs(x).sum(**last)
    yield "reduce_l2_norm", root((x * x).sum(**last))
    yield "reduce_log_sum", np.vectorize(mp.log, otypes=[object])(abs(x).sum(**last))
    yield "reduce_log_sum_exp", np.vectorize(mp.log, otypes=[object])(exp.sum(**last))
    yield "reduce_max", x.max(**last)
    yield "reduce_mean", x.sum(**last) / 8
    yield "reduce_min", x.min(**last)
    yield "reduce_prod", x.prod(**last)
    yield "reduce_sum", x.sum(**last)
    yield "reduce_sum_square", (x * x).sum(**last)
    yield "cumsum", x.cumsum(**last)


def unary_line(index):
    name, args, exact, formula = UNARY[index]
    stated = [f"{k}={v if isinstance(v, str) else format(to_half(v), '04x')}" for k, v in args.items()]
    return " ".join([name, *stated, digests(unary(exact, formula))])


def main():
    check_rounding()
    with Pool(4) as pool:
        lines = pool.map(unary_line, range(len(UNARY)), chunksize=1)
    lines.append(f"pow {digests(pairs())}")
    for name, values in others():
        lines.append(" ".join([name, *(f"{to_half(v):04x}" for v in values.ravel())]))
    target = Path(__file__).with_name("fp16.txt")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
