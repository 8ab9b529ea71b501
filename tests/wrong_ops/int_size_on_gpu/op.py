# SPDX-License-Identifier: Apache-2.0
"""The host passes the number of elements as an int, though the kernel takes 64 bits.

Beyond 2^31 elements it is negative or small, and most of the output is never written.
"""

from opforge import Op


def cases(make):
    for shape in [(7,), (33, 65), (4, 128), (2, 3, 17)]:
        yield (make(*shape),)


op = Op(
    namespace="wrong_ops",
    schema="int_size_on_gpu(Tensor x) -> Tensor y",
    reference=lambda x: x * 2,
    cases=cases,
)
