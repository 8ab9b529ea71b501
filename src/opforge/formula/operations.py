# SPDX-License-Identifier: Apache-2.0
"""The operations that torch records, and what a graph makes of each."""

from __future__ import annotations

import math
import operator

import torch

from opforge.formula.graph import COMPARISONS, FUNCTIONS

# These leave no trace, because a value's axes have names.
SAME = {
    "alias",
    "detach",
    "clone",
    "contiguous",
    "lift_fresh",
    "view_of",
    "_to_copy",
    "convert_element_type",
    "expand",
    "expand_copy",
    "unsqueeze",
    "squeeze",
    "permute",
    "transpose",
    "t",
    "view",
    "reshape",
    "_unsafe_view",
    "lift_fresh_copy",
    "alias_copy",
    "positive",
    "broadcast_in_dim",
}
# What torch calls them, and what the graph does.
RENAMED = {
    "maximum": "maximum",
    "minimum": "minimum",
    "clamp_min": "maximum",
    "clamp_max": "minimum",
    "logical_and": "and",
    "bitwise_and": "and",
    "logical_or": "or",
    "bitwise_or": "or",
    "logical_not": "not",
    "bitwise_not": "not",
    "sgn": "sign",
    "absolute": "abs",
    **{op: op for op in ("add", "sub", "mul", "div", "neg", "pow", "where", *COMPARISONS)},
    **{op: op for op in FUNCTIONS},
}
# Whole numbers are counts of elements and the like, which float holds.
DTYPES = (torch.float32, torch.bool, torch.int64)
# Of sizes and numbers.
PYTHON = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    operator.neg: "neg",
    operator.pow: "pow",
    math.sqrt: "sqrt",
}
# What no kernel is written for, as messages name it.
REASONS = {
    "cumsum": "running sums",
    "cumprod": "running products",
    "gather": "a gather by index",
    "scatter": "a scatter by index",
    "index": "indexing by a tensor",
    "embedding": "a lookup in a table",
    "sort": "sorting",
    "topk": "sorting",
    "convolution": "a convolution",
    "mm": "a matrix product",
    "bmm": "a matrix product",
    "addmm": "a matrix product",
    "slice": "a part of a tensor",
    "split": "a part of a tensor",
    "split_with_sizes": "a part of a tensor",
    "select": "a part of a tensor",
    "cat": "tensors put together",
    "constant_pad_nd": "padding",
    "slice_scatter": "a part of a tensor",
    "select_scatter": "a part of a tensor",
    "native_dropout": "random numbers",
    "inductor_random": "random numbers",
    "rand": "random numbers",
    "bernoulli": "random numbers",
    "rand_like": "random numbers",
    "argmax": "the place of the largest",
    "iota": "numbers that count elements",
    "arange": "numbers that count elements",
    "prod": "a product over a dim",
    "any": "any() over a dim",
    "all": "all() over a dim",
}
