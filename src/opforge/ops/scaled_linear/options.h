// SPDX-License-Identifier: Apache-2.0
// What the units of scaled_linear do after the product. Includes no torch header.
#pragma once

#include <opforge/families/product/call.h>
#include <opforge/families/product/finish.h>

namespace opforge {

struct ScaledOptions {
  Finish finish;
  bool adds = false;  // the residual, call.in[0]
};

}  // namespace opforge
