// SPDX-License-Identifier: Apache-2.0
// silu(gate) * up: one pass each way, kernels in opforge/gated.cuh. Nothing but the inputs is
// saved; the backward computes the activation again, which costs less than reading it would.
#pragma once

#include <opforge/activations.cuh>
#include <opforge/gated.cuh>
