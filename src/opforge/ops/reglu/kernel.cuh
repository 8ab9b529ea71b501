// SPDX-License-Identifier: Apache-2.0
// relu(gate) * up: one pass each way, kernels in opforge/families/gated/kernel.cuh. Nothing but the
// inputs is saved; the backward computes the activation again, which costs less than reading it
// would.
#pragma once

#include <opforge/families/activations/device.cuh>
#include <opforge/families/gated/kernel.cuh>
