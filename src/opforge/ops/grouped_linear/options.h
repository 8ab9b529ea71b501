// SPDX-License-Identifier: Apache-2.0
// What the units of grouped_linear get besides the call. Includes no torch header.
#pragma once

namespace opforge {

struct NoOptions {};

}  // namespace opforge
