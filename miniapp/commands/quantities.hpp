// SPDX-License-Identifier: Apache-2.0
// Sizes and times as people write and read them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// Of a vector: products with ranks and factors stay in 64 bits.
constexpr std::int64_t most_bytes = std::int64_t(1) << 40;

// "4", "64K", "16G": bytes, in units of 1024. Error (usage) that names the option otherwise.
std::int64_t parse_bytes(std::string const& option, std::string const& text);

struct ByteRange {
  std::int64_t low, high;
};
// "LOW:HIGH", or one size for both.
ByteRange parse_byte_range(std::string const& option, std::string const& text);

// "1,2,4": words, whole numbers, numbers. Error (usage) that names the option if there is none, or one out of range.
std::vector<std::string> split_list(std::string const& text);
std::vector<std::int64_t> parse_integers(std::string const& option, std::string const& text, std::int64_t low,
                                         std::int64_t high);
std::vector<double> parse_numbers(std::string const& option, std::string const& text, double low, double high);

std::string bytes_text(double bytes);      // "64 KiB"
std::string seconds_text(double seconds);  // "12.3 us"

}  // namespace lockstep
