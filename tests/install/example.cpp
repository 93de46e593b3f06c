// SPDX-License-Identifier: Apache-2.0
#include <iostream>

#include "miniapp/runtime.hpp"
#include "miniapp/version.hpp"

int main() {
  lockstep::Runtime const runtime;
  std::cout << "Lockstep " << lockstep::version() << " on " << lockstep::Space::name() << '\n';
}
