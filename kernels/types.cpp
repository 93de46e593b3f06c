// SPDX-License-Identifier: Apache-2.0
#include "kernels/types.hpp"
