# SPDX-License-Identifier: Apache-2.0
"""What leaves this machine: folders, wheels, and packages for other frameworks."""
