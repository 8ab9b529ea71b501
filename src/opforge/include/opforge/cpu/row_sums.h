// SPDX-License-Identifier: Apache-2.0
// Sums over a row of what a function gives for each vector. Includes no torch header.
#pragma once

#include <opforge/cpu/rows.h>
#include <opforge/cpu/sum.h>

namespace opforge {

// Calls visit(k, j, lanes) for every vector of a row of n; k alternates, so that sums and the like
// can be kept in four places and hide their latency.
template <class T, class Visit>
OPFORGE_INLINE void visit_vectors(int64_t begin, int64_t n, const Visit& visit) {
  constexpr int64_t lanes = kLanes<T>;
  int64_t j = begin;
  for (; j + 4 * lanes <= n; j += 4 * lanes) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) visit(k, j + k * lanes, AllLanes<T>{});
  }
  for (; j + lanes <= n; j += lanes) visit(0, j, AllLanes<T>{});
  if (j < n) visit(1, j, n - j);
}

// The first n lanes; the others are 0.
template <class T>
OPFORGE_INLINE vec<T> first_lanes(vec<T> v, AllLanes<T>) {
  return v;
}
template <class T>
OPFORGE_INLINE vec<T> first_lanes(vec<T> v, int64_t n) {
  compute_t<T> lanes[kLanes<T>];
  store(lanes, v);
  return load_some(lanes, 1, n);
}

// The sum over a row of what term(j, lanes) gives for each vector, in blocks that are added up in
// double.
template <class T, class Term>
OPFORGE_INLINE double sum_of_terms(int64_t n, const Term& term) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlockTerms) {
    vec<T> acc[4] = {};
    visit_vectors<T>(begin, std::min(begin + kBlockTerms, n), [&](int k, int64_t j, auto lanes) {
      acc[k] += first_lanes<T>(term(j, lanes), lanes);
    });
    total += double(sum_lanes<compute_t<T>>((acc[0] + acc[1]) + (acc[2] + acc[3])));
  }
  return total;
}

}  // namespace opforge
