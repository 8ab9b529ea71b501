# SPDX-License-Identifier: Apache-2.0
"""How small an error the check notices: one beyond rounding, never one below the last bit."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path

import pytest
import torch

from opforge import discover
from opforge.check import situation
from opforge.check.place import Place

sys.path.insert(0, str(Path(__file__).parents[1] / "sensitivity"))
from sweep import is_noticed, part_of, results_of, scaled, smallest_noticed, typical

SWEPT = Path(__file__).parents[1] / "sensitivity" / "results.json"
# Errors of 2^-k that are clearly beyond rounding: of a pointwise op, of one with a sum in it.
POINTWISE = {torch.float32: 20, torch.float16: 9, torch.bfloat16: 6, torch.float64: 47}
NORM = {torch.float32: 17, torch.float16: 8, torch.bfloat16: 5, torch.float64: 44}


def largest(op, dtype):
    return max(situation.own(discover.find(op), Place("cpu"), dtype, 0), key=lambda s: s.elements)


def normal(rows, cols, dtype, seed=0):
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)).to(dtype)


def every_result(s):
    for truth, results, names in results_of(s):
        for i, name in enumerate(names):
            if results[i] is not None and results[i].numel():
                yield truth, results, i, name


@pytest.mark.parametrize(("op", "beyond"), [("vector_add", POINTWISE), ("rms_norm", NORM)])
@pytest.mark.parametrize("dtype", POINTWISE)
@pytest.mark.nightly
def test_an_error_beyond_rounding_is_noticed_in_one_element(op, beyond, dtype):
    for truth, results, i, name in every_result(largest(op, dtype)):
        one = part_of(results[i], typical(results[i]), "element")
        for k in range(1, beyond[dtype] + 1):
            assert is_noticed(truth, results, i, scaled(results[i], one, k)), (name, k)


@pytest.mark.parametrize("op", ["vector_add", "rms_norm"])
def test_an_error_below_the_last_bit_is_not_noticed(op):
    for truth, results, i, name in every_result(largest(op, torch.float32)):
        everything = torch.ones_like(results[i], dtype=torch.bool)
        assert not is_noticed(truth, results, i, scaled(results[i], everything, 30)), name


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_infinity_in_a_row_hides_nothing_of_it(op, dtype):
    """A mask is infinities: of one moved by a part of itself came NaN, and any result was right."""
    x = normal(3, 40, dtype)
    mask = torch.zeros(3, 40, dtype=dtype)
    mask[:, 25:] = -math.inf
    s = largest(op, dtype)
    s.values.update(x=x, mask=mask, scale=0.125, causal=False)
    for truth, results, i, name in every_result(s):
        if name == "grad_mask":
            continue
        at = typical(results[i])
        k = smallest_noticed(truth, results, i, part_of(results[i], at, "element"))
        assert k >= (17 if dtype == torch.float32 else 5), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_strides_of_a_result_add_no_rounding(dtype):
    """The last rounding of a result is allowed for once, however it lies."""
    s = largest("vector_add", dtype)
    s.values.update(a=normal(24, 40, dtype).t(), b=normal(24, 40, dtype, seed=1).t())
    ((truth, results, _),) = itertools.islice(results_of(s), 1)
    (c,) = results
    assert not s.op.reference(*s.case).is_contiguous()
    exact = s.values["a"].double() + s.values["b"].double()
    away = (c.double().abs() >= exact.abs()).view(-1).nonzero().squeeze(-1)  # by up to half an ulp
    for at in away[:20].tolist():
        one = part_of(c, at, "element")
        assert is_noticed(truth, results, 0, scaled(c, one, POINTWISE[dtype] + 1)), at


# Where a rounding may decide whether a gradient passes (the limits of clamp, a relu) or which FP8
# number is nearest, results near it may differ as much. Other cases have no such place.
FP8 = {"fp8_linear", "scaled_linear"}
COARSE = {"linear", "linear_dact", "mlp", *FP8}


def test_the_committed_sweep_has_every_op_and_none_is_blind():
    """Sums of thousands of terms have the least."""
    least = {"float32": 10, "float16": 5, "bfloat16": 3, "float64": 23}
    found = json.loads(SWEPT.read_text())["found"]
    dtypes = {
        (n, str(d).removeprefix("torch."))
        for n in discover.builtin_names()
        for d in discover.find(n).dtypes
        if d.is_floating_point
    }
    assert {(f["op"], f["dtype"]) for f in found} == dtypes
    for f in found:
        worst = max if f["op"] in COARSE else min
        few = "bfloat16" if f["op"] in FP8 else f["dtype"]  # of bits
        assert worst(k for k in f["element"] if k is not None) >= least[few], f


def norm_with_weight(dtype, weight):
    s = largest("rms_norm", dtype)
    s.values["weight"] = normal(1, s.values["x"].shape[-1], weight)[0]
    return s


def test_float64_keeps_its_digits_beside_a_float32_weight():
    """What a kernel computes in follows from its outputs, not from every input."""
    for truth, results, i, name in every_result(norm_with_weight(torch.float64, torch.float32)):
        k = smallest_noticed(truth, results, i, part_of(results[i], typical(results[i]), "element"))
        assert k >= (23 if name == "grad_weight" else NORM[torch.float64]), name


def test_float32_may_round_beside_a_float64_weight():
    for truth, results, _, _ in every_result(norm_with_weight(torch.float32, torch.float64)):
        truth.check(results)
