// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "miniapp/runtime.hpp"

namespace lockstep {

// The runtime that the tests' main has started.
Runtime const& test_runtime();

}  // namespace lockstep
