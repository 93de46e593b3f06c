// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <stdexcept>
#include <string>

namespace lockstep {

// Exit codes of the program.
enum class ExitCode : int {
  success      = 0,
  wrong_result = 1,  // a check failed: VERIFICATION: FAILED
  usage        = 2,  // bad options or bad input files
  timeout      = 3,  // a rank died or stalled; or no device was found
  environment  = 4   // a library call failed (MPI, NCCL, CUDA, file system)
};

// Any failure that ends the program with one line. The message names the thing, what was found and what was expected.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string const& message) : std::runtime_error(message), m_code(code) {}
  ExitCode code() const noexcept { return m_code; }

 private:
  ExitCode m_code;
};

// Other libraries' messages have more.
inline std::string first_line(std::exception const& error) {
  std::string const text = error.what();
  return text.substr(0, text.find('\n'));
}

// Throws Error when condition holds. message is evaluated only then.
#define LOCKSTEP_THROW_IF(condition, code, message)          \
  do {                                                       \
    if (condition) throw ::lockstep::Error((code), message); \
  } while (false)

}  // namespace lockstep
