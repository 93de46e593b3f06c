// SPDX-License-Identifier: Apache-2.0
#include "miniapp/data/idx.hpp"

#include "kernels/error.hpp"

#include <zlib.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

namespace lockstep {

namespace {

using Bytes = std::vector<std::uint8_t>;

[[noreturn]] void fail(std::string const& path, std::string const& message) {
  throw Error(ExitCode::usage, path + ": " + message);
}

Bytes read_file(std::string const& path) {
  std::error_code code;
  auto const status = std::filesystem::status(path, code);
  if (status.type() == std::filesystem::file_type::not_found) fail(path, "no such file, expected an IDX file");
  if (code) fail(path, "cannot be looked up: " + code.message());
  if (std::filesystem::is_directory(status)) fail(path, "is a folder, expected an IDX file");
  // Opening a pipe or a device could block for ever.
  if (!std::filesystem::is_regular_file(status)) fail(path, "is not a regular file, expected an IDX file");

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) fail(path, std::string("cannot be opened: ") + std::strerror(errno));
  Bytes bytes;
  std::size_t used = 0, got = 0;
  do {
    bytes.resize(std::max<std::size_t>(2 * used, 1 << 16));
    errno = 0;
    got   = std::fread(bytes.data() + used, 1, bytes.size() - used, file.get());
    if (std::ferror(file.get())) fail(path, std::string("cannot be read: ") + std::strerror(errno));
    used += got;
  } while (got > 0);
  bytes.resize(used);
  if (bytes.empty()) fail(path, "is empty (0 bytes), expected an IDX file");
  return bytes;
}

std::string first_bytes(Bytes const& bytes) {
  std::string text, hex;
  char buffer[4];
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 8); ++i) {
    std::snprintf(buffer, sizeof buffer, "%02x ", unsigned(bytes[i]));
    hex += buffer;
    text += bytes[i] >= 0x20 && bytes[i] < 0x7f ? char(bytes[i]) : '.';
  }
  return "first bytes " + hex + "\"" + text + "\"";
}

// `limit` is set by `header` once enough is decoded; decoding stops one byte beyond it.
template <class HeaderCheck>
Bytes decompress(std::string const& path, Bytes const& packed, std::size_t header_bytes, HeaderCheck header) {
  z_stream stream{};
  auto const zlib_fail = [&](char const* call, int code) {
    throw Error(ExitCode::environment, path + ": zlib: " + call + " failed with code " + std::to_string(code));
  };
  int code = inflateInit2(&stream, 16 + MAX_WBITS);  // 16: gzip only
  if (code != Z_OK) zlib_fail("inflateInit2", code);
  std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, &inflateEnd);

  Bytes bytes;
  std::int64_t limit = -1;
  std::size_t used = 0, taken = 0;
  for (;;) {
    if (used == bytes.size()) bytes.resize(std::max<std::size_t>(2 * used, 1 << 16));
    auto const input  = unsigned(std::min<std::size_t>(packed.size() - taken, 1 << 24));
    auto const output = unsigned(std::min<std::size_t>(bytes.size() - used, 1 << 24));
    stream.next_in    = const_cast<Bytef*>(packed.data() + taken);
    stream.avail_in   = input;
    stream.next_out   = bytes.data() + used;
    stream.avail_out  = output;
    code              = inflate(&stream, Z_NO_FLUSH);
    taken += input - stream.avail_in;
    used += output - stream.avail_out;
    if (code == Z_MEM_ERROR || code == Z_STREAM_ERROR) zlib_fail("inflate", code);
    if (code == Z_DATA_ERROR || code == Z_NEED_DICT)
      fail(path, std::string("damaged gzip data (") + (stream.msg ? stream.msg : "dictionary needed") + ") after " +
                     std::to_string(used) + " decoded bytes");
    if (limit < 0 && used >= header_bytes) limit = header(bytes);
    if (limit >= 0 && std::int64_t(used) > limit) break;  // the caller reports trailing bytes
    if (code == Z_STREAM_END) {
      if (taken == packed.size()) break;
      // gzip files may be concatenated; anything else behind the stream is not ours.
      if (packed.size() - taken < 2 || packed[taken] != 0x1f || packed[taken + 1] != 0x8b)
        fail(path, std::to_string(packed.size() - taken) + " bytes after the end of the gzip data, expected none");
      if ((code = inflateReset(&stream)) != Z_OK) zlib_fail("inflateReset", code);
    } else if (taken == packed.size() && stream.avail_out > 0) {
      fail(path, "truncated gzip data: ends after " + std::to_string(packed.size()) + " bytes with " +
                     std::to_string(used) + " bytes decoded" +
                     (limit >= 0 ? ", expected " + std::to_string(limit) + " decoded bytes" : ", expected more"));
    }
  }
  bytes.resize(used);
  return bytes;
}

std::uint32_t big_endian(Bytes const& bytes, std::size_t at) {
  return std::uint32_t(bytes[at]) << 24 | std::uint32_t(bytes[at + 1]) << 16 | std::uint32_t(bytes[at + 2]) << 8 |
         bytes[at + 3];
}

std::uint32_t swapped(std::uint32_t v) {
  return v << 24 | (v & 0xff00u) << 8 | (v >> 8 & 0xff00u) | v >> 24;
}

std::string hex(std::uint32_t value) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "0x%08x", unsigned(value));
  return buffer;
}

}  // namespace

IdxFile read_idx(std::string const& path, std::string const& what, std::vector<std::int64_t> const& expected) {
  Bytes bytes                      = read_file(path);
  std::uint32_t const magic        = 0x0800u + std::uint32_t(expected.size());
  std::size_t const header_bytes   = 4 * (1 + expected.size());
  std::string const little_endian  = " is written in little-endian byte order, expected big-endian ";
  std::string const expected_magic = hex(magic) + " (IDX " + what + ")";

  IdxFile idx;
  auto const check_magic = [&](Bytes const& decoded) {
    std::uint32_t const found = big_endian(decoded, 0);
    if (found == swapped(magic)) fail(path, "magic number " + hex(found) + little_endian + expected_magic);
    if (found != magic && found >> 8 == 8)
      fail(path, "magic number " + hex(found) + " (IDX bytes of " + std::to_string(found & 0xff) +
                     " dimensions), expected " + expected_magic);
    if (found != magic) fail(path, "magic number " + hex(found) + ", expected " + expected_magic);
  };
  // Checks all but the length; returns the whole file's length by its header.
  auto const check_header = [&](Bytes const& decoded) {
    check_magic(decoded);
    std::int64_t product = 1;
    for (std::size_t d = 0; d < expected.size(); ++d) {
      std::uint32_t const found = big_endian(decoded, 4 * (d + 1));
      std::string const name    = d == 0 ? "number of " + what : "dimension " + std::to_string(d);
      if (expected[d] > 0 && found == swapped(std::uint32_t(expected[d])))
        fail(path, name + ' ' + hex(found) + little_endian + std::to_string(expected[d]));
      if (expected[d] > 0 && found != expected[d])
        fail(path, name + " is " + std::to_string(found) + ", expected " + std::to_string(expected[d]));
      if (found == 0) fail(path, name + " is 0, expected at least 1");
      idx.extents.push_back(found);
      if (product > INT64_MAX / 2 / std::int64_t(found)) fail(path, "header claims more than 2^62 bytes");
      product *= found;
    }
    return std::int64_t(header_bytes) + product;
  };

  if (bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b) {
    bytes = decompress(path, bytes, header_bytes, check_header);
    if (bytes.size() < header_bytes)
      fail(path, "holds " + std::to_string(bytes.size()) + " bytes after decompression, expected an IDX header of " +
                     std::to_string(header_bytes));
  } else {
    bool const idx_like =
        bytes.size() >= 4 && (big_endian(bytes, 0) >> 8 == 8 || big_endian(bytes, 0) == swapped(magic));
    if (!idx_like)
      fail(path, "is neither gzip nor IDX: " + first_bytes(bytes) + ", expected 1f 8b (gzip) or " + expected_magic);
    check_magic(bytes);
    if (bytes.size() < header_bytes)
      fail(path, "is " + std::to_string(bytes.size()) + " bytes long, expected an IDX header of " +
                     std::to_string(header_bytes));
    check_header(bytes);
  }

  std::int64_t claimed = std::int64_t(header_bytes), per_item = 1;
  for (std::size_t d = 1; d < idx.extents.size(); ++d) per_item *= idx.extents[d];
  claimed += idx.extents[0] * per_item;
  auto const length = std::int64_t(bytes.size());
  if (length != claimed) {
    std::uint32_t const count = swapped(std::uint32_t(idx.extents[0]));
    if (std::int64_t(header_bytes) + count * per_item == length)
      fail(path,
           "number of " + what + ' ' + hex(std::uint32_t(idx.extents[0])) + little_endian + std::to_string(count));
    fail(path, (length > claimed ? "has trailing bytes: more than " + std::to_string(claimed)
                                 : "is truncated: " + std::to_string(length)) +
                   " bytes found, expected " + std::to_string(claimed) + " for " + std::to_string(idx.extents[0]) +
                   ' ' + what);
  }
  idx.values.assign(bytes.begin() + std::ptrdiff_t(header_bytes), bytes.end());
  return idx;
}

}  // namespace lockstep
