// SPDX-License-Identifier: Apache-2.0
#include "miniapp/commands/quantities.hpp"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "kernels/error.hpp"

namespace lockstep {
namespace {

// At least three significant digits, without an exponent up to 9999.
std::string digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
  return text;
}

}  // namespace

std::int64_t parse_bytes(std::string const& option, std::string const& text) {
  std::int64_t value        = -1;
  auto const [rest, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string const unit(rest, text.data() + text.size());
  std::size_t const power = std::string("KMGT").find(unit.empty() ? 'B' : unit[0]) + 1;  // 0: none of them
  bool const known = unit.empty() || unit == "B" || (power > 0 && (unit.substr(1).empty() || unit.substr(1) == "iB"));
  LOCKSTEP_THROW_IF(failed != std::errc() || value < 0 || !known, ExitCode::usage,
                    option + " " + text + "; expected a number of bytes such as 4, 64K, 1M or 16G");
  std::int64_t const scale = std::int64_t(1) << 10 * (unit.empty() || unit == "B" ? 0 : power);
  LOCKSTEP_THROW_IF(value > std::numeric_limits<std::int64_t>::max() / scale, ExitCode::usage,
                    option + " " + text + "; expected less than 8 EiB");
  return value * scale;
}

ByteRange parse_byte_range(std::string const& option, std::string const& text) {
  std::size_t const colon = text.find(':');
  ByteRange range;
  range.low  = parse_bytes(option, text.substr(0, colon));
  range.high = colon == std::string::npos ? range.low : parse_bytes(option, text.substr(colon + 1));
  LOCKSTEP_THROW_IF(range.low > range.high, ExitCode::usage,
                    option + " " + text + "; expected LOW:HIGH with LOW <= HIGH");
  return range;
}

std::vector<std::string> split_list(std::string const& text) {
  std::vector<std::string> words;
  std::istringstream stream(text + ',');
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

std::vector<std::int64_t> parse_integers(std::string const& option, std::string const& text, std::int64_t low,
                                         std::int64_t high) {
  std::vector<std::int64_t> values;
  for (auto const& word : split_list(text)) {
    std::int64_t value        = 0;
    auto const [rest, failed] = std::from_chars(word.data(), word.data() + word.size(), value);
    LOCKSTEP_THROW_IF(failed != std::errc() || rest != word.data() + word.size() || value < low || value > high,
                      ExitCode::usage,
                      option + " " + text + "; expected whole numbers of " + std::to_string(low) + " to " +
                          std::to_string(high) + " with commas between them");
    values.push_back(value);
  }
  return values;
}

std::vector<double> parse_numbers(std::string const& option, std::string const& text, double low, double high) {
  std::vector<double> values;
  for (auto const& word : split_list(text)) {
    char* end          = nullptr;
    double const value = std::strtod(word.c_str(), &end);
    LOCKSTEP_THROW_IF(word.empty() || *end != '\0' || !(value >= low && value <= high), ExitCode::usage,
                      option + " " + text + "; expected numbers of " + digits(low) + " to " + digits(high) +
                          " with commas between them");
    values.push_back(value);
  }
  return values;
}

std::string bytes_text(double bytes) {
  char const* const units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
  int unit                  = 0;
  for (; bytes >= 1024 && unit < 6; ++unit) bytes /= 1024;
  return (bytes == std::floor(bytes) ? std::to_string(std::int64_t(bytes)) : digits(bytes)) + units[unit];
}

std::string seconds_text(double seconds) {
  if (seconds == 0) return "0 s";
  if (seconds < 1e-6) return digits(seconds * 1e9) + " ns";
  if (seconds < 1e-3) return digits(seconds * 1e6) + " us";
  if (seconds < 1) return digits(seconds * 1e3) + " ms";
  return digits(seconds) + " s";
}

}  // namespace lockstep
