# SPDX-License-Identifier: Apache-2.0
"""The score of each row's label; a label that is out of range gets the nearest class.

Clamping keeps the kernel from reading wild memory and hides that the labels are wrong: one class
too few in the model, or an ignored label of -100 taken for class 0.
"""

import torch

from opforge import Op


def reference(x, label):
    return x.gather(1, label[:, None])[:, 0]


def validate(x, label):
    if x.dim() != 2 or not x.is_floating_point():
        raise ValueError(
            f"x must be a floating point matrix of scores, got {x.dtype} of shape {tuple(x.shape)}"
        )
    if label.dtype != torch.int64:
        raise TypeError(f"label must be torch.int64, got {label.dtype}")
    if tuple(label.shape) != (x.shape[0],):
        raise ValueError(
            f"label has shape {tuple(label.shape)} and x has {tuple(x.shape)}; "
            "label needs one class per row of x"
        )


def cases(make):
    for rows, classes in [(5, 33), (4, 128), (33, 65), (100, 9)]:
        scores = make(rows, classes)
        yield scores, torch.arange(rows, device=scores.device) % 9


op = Op(
    namespace="wrong_ops",
    schema="label_clamped(Tensor x, Tensor label) -> Tensor y",
    reference=reference,
    dtypes=(torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64),
    validate=validate,
    cases=cases,
)
