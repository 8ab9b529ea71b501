# SPDX-License-Identifier: Apache-2.0
"""For each query the sum of its distances to all keys, which pass through two buffers in turns."""

from opforge import Op


def validate(query, key):
    for name, given in (("query", query), ("key", key)):
        if given.dim() != 1:
            raise ValueError(
                f"{name} must have one dim; query has shape {tuple(query.shape)}, key has "
                f"{tuple(key.shape)}"
            )
    if query.dtype != key.dtype:
        raise TypeError(f"query is {query.dtype} but key is {key.dtype}; convert one of them")


def cases(make):
    for queries, keys in [(7, 33), (32, 128), (100, 5), (3, 0), (0, 3), (65, 64)]:
        yield make(queries), make(keys)
    yield make(40).round(), make(70).round()  # where many distances are 0


op = Op(
    namespace="right_ops",
    schema="summed_distances(Tensor query, Tensor key) -> Tensor y",
    reference=lambda query, key: (query[:, None] - key).abs().sum(1),
    validate=validate,
    cases=cases,
    rowwise=True,
)
