# SPDX-License-Identifier: Apache-2.0
"""The public function hands two arguments over in the wrong order.

The op behind it is right, and every row that calls the op says so.
"""

from opforge import Op


def cases(make):
    yield make(33, 65), 2.0, 0.5
    yield make(7), -1.0, 3.0


op = Op(
    namespace="wrong_ops",
    schema="public_function_swapped(Tensor x, float scale, float shift) -> Tensor y",
    reference=lambda x, scale, shift: x * scale + shift,
    cases=cases,
)


def public_function_swapped(x, scale=1.0, shift=0.0):
    return op(x, shift, scale)
