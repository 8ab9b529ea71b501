// SPDX-License-Identifier: Apache-2.0
// dropout reads x and writes y: the floor is a copy. The mask costs arithmetic alone: of eight
// elements of 16 bits, a call of philox and eight comparisons, some 70 of the 130 instructions of a
// thread; the copy leaves time for 240.
#pragma once

#include <opforge/algorithms/elementwise.cuh>
#include <opforge/families/dropout/device.cuh>
