// SPDX-License-Identifier: Apache-2.0
#include "miniapp/sha256.hpp"

#include <openssl/evp.h>

#include "kernels/error.hpp"

namespace lockstep {

std::string sha256(void const* data, std::size_t bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  LOCKSTEP_THROW_IF(EVP_Digest(data, bytes, digest, &length, EVP_sha256(), nullptr) != 1, ExitCode::environment,
                    "EVP_Digest: SHA-256 failed");
  std::string text;
  for (unsigned int i = 0; i < length; ++i) {
    constexpr char digits[] = "0123456789abcdef";
    text += digits[digest[i] >> 4];
    text += digits[digest[i] & 15];
  }
  return text;
}

}  // namespace lockstep
