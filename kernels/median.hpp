// SPDX-License-Identifier: Apache-2.0
// What timings are told by.
#pragma once
#include <algorithm>
#include <vector>

namespace lockstep {

// The middle value; the mean of the two middle ones where there are two; 0 of none.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::size_t const n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace lockstep
