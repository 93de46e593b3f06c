// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <string>

namespace lockstep {

// SHA-256 of the bytes, in lower-case hexadecimal.
std::string sha256(void const* data, std::size_t bytes);

}  // namespace lockstep
