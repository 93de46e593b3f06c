// SPDX-License-Identifier: Apache-2.0
#include "miniapp/safetensors.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/error.hpp"
#include "miniapp/files.hpp"
#include "miniapp/sha256.hpp"

namespace lockstep {

namespace {

using nlohmann::json;

static_assert(sizeof(float) == 4 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are written as they lie");

constexpr std::size_t length_bytes = 8, alignment = 8;

[[noreturn]] void refuse(std::string const& path, std::string const& message) {
  throw Error(ExitCode::usage, path + ": " + message);
}

std::string checksum(json header, char const* values, std::size_t bytes) {
  header["__metadata__"].erase(safetensors_checksum);
  std::string text = header.dump();
  text.append(values, bytes);
  return sha256(text.data(), text.size());
}

std::int64_t value_count(std::vector<std::int64_t> const& extents) {
  std::int64_t count = 1;
  for (auto extent : extents) count *= extent;
  return count;
}

// One entry of the header, checked against the values' length.
struct Entry {
  std::string name;
  std::vector<std::int64_t> extents;
  std::uint64_t begin, end;
};

Entry read_entry(std::string const& path, std::string const& name, json const& entry, std::uint64_t data_bytes) {
  std::string const tensor = "tensor '" + name + "'";
  auto const is_natural    = [](json const& value) { return value.is_number_unsigned(); };
  auto const are_naturals  = [&](char const* key) {
    return entry.contains(key) && entry[key].is_array() &&
           std::all_of(entry[key].begin(), entry[key].end(), is_natural);
  };
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !are_naturals("shape") || !are_naturals("data_offsets") || entry["data_offsets"].size() != 2)
    refuse(path, tensor + " has a damaged header entry, expected dtype, shape and data_offsets");
  if (entry["dtype"] != "F32")
    refuse(path, tensor + " has type " + entry["dtype"].get<std::string>() + ", expected F32");
  Entry result{name, {}, entry["data_offsets"][0], entry["data_offsets"][1]};
  if (result.begin > result.end)
    refuse(path, tensor + " begins at byte " + std::to_string(result.begin) + " and ends at byte " +
                     std::to_string(result.end) + ", expected offsets in order");
  if (result.end > data_bytes)
    refuse(path, "is truncated: " + std::to_string(data_bytes) + " bytes of values found, expected at least " +
                     std::to_string(result.end) + " for " + tensor);
  std::uint64_t const bytes = result.end - result.begin;
  std::uint64_t needed      = sizeof(float);
  for (auto const& value : entry["shape"]) {
    auto const extent = value.get<std::uint64_t>();
    if (extent != 0 && needed > data_bytes / extent)  // also keeps the product from overflowing
      refuse(path, tensor + " has a shape of more than " + std::to_string(data_bytes) + " bytes, the file's values");
    needed *= extent;
    result.extents.push_back(std::int64_t(extent));
  }
  if (needed != bytes)
    refuse(path,
           tensor + " has " + std::to_string(bytes) + " bytes, expected " + std::to_string(needed) + " by its shape");
  return result;
}

std::string read_whole(std::string const& path) {
  std::error_code code;
  auto const status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status)) refuse(path, "no such file, expected a safetensors file");
  if (!std::filesystem::is_regular_file(status)) refuse(path, "is not a regular file, expected a safetensors file");
  std::ifstream stream(path, std::ios::binary);
  if (!stream) refuse(path, std::string("cannot be opened: ") + std::strerror(errno));
  std::string const bytes{std::istreambuf_iterator<char>(stream), {}};
  if (stream.bad()) refuse(path, "cannot be read");
  return bytes;
}

}  // namespace

void write_safetensors(std::string const& path, TensorFile const& file) {
  json header            = json::object();
  header["__metadata__"] = file.metadata;
  std::uint64_t offset   = 0;
  std::string values;
  for (auto const& tensor : file.tensors) {
    LOCKSTEP_THROW_IF(value_count(tensor.extents) != std::int64_t(tensor.values.size()), ExitCode::environment,
                      path + ": tensor '" + tensor.name + "' has " + std::to_string(tensor.values.size()) +
                          " values, expected " + std::to_string(value_count(tensor.extents)) + " by its shape");
    std::uint64_t const bytes = tensor.values.size() * sizeof(float);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.extents}, {"data_offsets", {offset, offset + bytes}}};
    values.append(reinterpret_cast<char const*>(tensor.values.data()), bytes);
    offset += bytes;
  }
  header["__metadata__"][safetensors_checksum] = checksum(header, values.data(), values.size());
  std::string text                             = header.dump();
  text.resize((text.size() + alignment - 1) / alignment * alignment, ' ');  // aligns the values
  std::string bytes;
  for (std::size_t i = 0; i < length_bytes; ++i) bytes += char(std::uint64_t(text.size()) >> (8 * i));
  write_file(path, bytes + text + values, true);
}

TensorFile read_safetensors(std::string const& path) {
  std::string const bytes = read_whole(path);
  if (bytes.size() < length_bytes)
    refuse(path, "is " + std::to_string(bytes.size()) + " bytes long, expected a safetensors file");
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 0; i < length_bytes; ++i)
    header_bytes |= std::uint64_t(static_cast<unsigned char>(bytes[i])) << (8 * i);
  if (bytes.size() > length_bytes && bytes[length_bytes] != '{')
    refuse(path, std::string("is not a safetensors file: byte 8 is '") +
                     (std::isprint(static_cast<unsigned char>(bytes[length_bytes])) ? bytes[length_bytes] : '?') +
                     "', expected '{'");
  if (header_bytes > bytes.size() - length_bytes)
    refuse(path, "is truncated or not a safetensors file: " + std::to_string(bytes.size() - length_bytes) +
                     " bytes after the header's length, expected a header of " + std::to_string(header_bytes));
  json const header =
      json::parse(bytes.data() + length_bytes, bytes.data() + length_bytes + header_bytes, nullptr, false);
  if (!header.is_object()) refuse(path, "has a damaged header, expected a JSON object");
  char const* const values       = bytes.data() + length_bytes + header_bytes;
  std::uint64_t const data_bytes = bytes.size() - length_bytes - header_bytes;

  TensorFile file;
  std::vector<Entry> entries;
  for (auto const& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      entries.push_back(read_entry(path, name, entry, data_bytes));
      continue;
    }
    if (!entry.is_object()) refuse(path, "has damaged metadata, expected a JSON object");
    for (auto const& [key, value] : entry.items()) {
      if (!value.is_string()) refuse(path, "metadata '" + key + "' is not text");
      file.metadata[key] = value;
    }
  }

  std::sort(entries.begin(), entries.end(), [](Entry const& a, Entry const& b) {
    return std::make_pair(a.begin, a.end) < std::make_pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (auto const& entry : entries) {
    if (entry.begin != covered)
      refuse(path, "tensor '" + entry.name + "' begins at byte " + std::to_string(entry.begin) + ", expected " +
                       std::to_string(covered) + ": a gap or an overlap");
    covered = entry.end;
    NamedTensor tensor{entry.name, entry.extents, std::vector<float>((entry.end - entry.begin) / sizeof(float))};
    if (entry.end > entry.begin)  // an empty tensor has no address to copy to
      std::memcpy(tensor.values.data(), values + entry.begin, entry.end - entry.begin);
    file.tensors.push_back(std::move(tensor));
  }
  if (covered != data_bytes)
    refuse(path, "holds " + std::to_string(data_bytes) + " bytes of values, expected " + std::to_string(covered) +
                     " by its header");
  auto const stated = file.metadata.find(safetensors_checksum);
  if (stated == file.metadata.end()) refuse(path, "has no checksum, expected a file written by lockstep");
  std::string const found = checksum(header, values, data_bytes);
  if (found != stated->second)
    refuse(path, "is damaged: SHA-256 of its content is " + found + ", expected " + stated->second);
  return file;
}

}  // namespace lockstep
