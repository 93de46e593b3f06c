// SPDX-License-Identifier: Apache-2.0
// The safetensors file format, as far as Lockstep needs it: float32 tensors and text metadata. A file is the header's
// length (8 bytes, little-endian), a JSON header, and the tensors' values (little-endian) without gaps.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> extents;
  std::vector<float> values;  // as many as the product of the extents
};

struct TensorFile {
  std::map<std::string, std::string> metadata;
  std::vector<NamedTensor> tensors;
};

// Metadata key of the checksum that writing adds: SHA-256 of the header (its JSON as written, without this entry)
// followed by the values.
constexpr char const safetensors_checksum[] = "sha256";

// Writes to a temporary name beside path, flushes it to the disk and renames it, so that path is at no time a part of a
// file. Throws Error (environment) and leaves path as it was.
void write_safetensors(std::string const& path, TensorFile const& file);

// Throws Error (usage) with one line naming file, found and expected: truncated, longer than its header says, not this
// format, gaps or overlaps, another type than F32, a wrong or missing checksum.
TensorFile read_safetensors(std::string const& path);

}  // namespace lockstep
