// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace opforge::guard {

// From now on an access to an inaccessible page of a block ends the process with a report.
void handle_faults();

}  // namespace opforge::guard
