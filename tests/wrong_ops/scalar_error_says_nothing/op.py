# SPDX-License-Identifier: Apache-2.0
"""The sum over the last dim, which refuses a tensor without dims, but does not say why.

The reference takes it (torch treats it as one row of one), the record does not exclude it, and
the kernel's "invalid argument" leaves the user to guess what rank it wants.
"""

from opforge import Op

op = Op(
    namespace="wrong_ops",
    schema="scalar_error_says_nothing(Tensor x) -> Tensor y",
    reference=lambda x: x.sum(-1),
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (5, 33), (4, 128), (2, 3, 17), (64, 9)]
    ],
)
