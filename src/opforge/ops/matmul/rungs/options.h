// SPDX-License-Identifier: Apache-2.0
// The rungs by number, as in op.py, and what units take. Includes no torch header.
#pragma once

#include <opforge/core/unit.h>
#include <opforge/families/product/choice.h>

namespace opforge {

enum class Rung { best, naive, coalesced, tiled, registers, wmma, mma, hopper };

using MatmulUnit = Unit<bool(const ProductCall&, const NoOptions&)>;

}  // namespace opforge
