# SPDX-License-Identifier: Apache-2.0
"""gelu, whose backward takes the tanh approximation when it is compiled.

Libraries have a second, pure path for torch.compile, from the time when their kernels could not
be traced. The two drift apart, and a model trains otherwise than it was tested.
"""

import torch
from torch.nn import functional

from opforge import Op


def backward(grad_y, x):
    which = "tanh" if torch.compiler.is_compiling() else "none"  # wrong: always "none"
    return torch.ops.aten.gelu_backward(grad_y, x, approximate=which)


op = Op(
    namespace="wrong_ops",
    schema="compiled_differs(Tensor x) -> Tensor y",
    reference=functional.gelu,
    backward=backward,
    cases=lambda make: [
        (make(*shape),) for shape in [(7,), (33, 65), (4, 128), (2, 3, 17), (1000,)]
    ],
)
