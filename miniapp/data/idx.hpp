// SPDX-License-Identifier: Apache-2.0
// Reader of IDX files (the format of MNIST and Fashion-MNIST): four bytes of magic (0, 0, 8 = unsigned byte, number of
// dimensions), one big-endian 32-bit length per dimension, then the bytes. Plain or gzip, told apart by content.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct IdxFile {
  std::vector<std::int64_t> extents;
  std::vector<std::uint8_t> values;  // as many as the product of the extents
};

// expected: one entry per dimension, the required length or 0 for any length >= 1. `what` ("images") names the content
// in messages. Throws Error (usage) with one line naming the file, what was found and what was expected. Never
// allocates by what a header claims, only by what the file holds.
IdxFile read_idx(std::string const& path, std::string const& what, std::vector<std::int64_t> const& expected);

}  // namespace lockstep
