# SPDX-License-Identifier: Apache-2.0
"""``opforge doctor`` examines the machine; ``opforge list`` lists the ops."""
