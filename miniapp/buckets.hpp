// SPDX-License-Identifier: Apache-2.0
// How gradients are put together for the allreduce: a function of the network and of a size alone, so that it is the
// same on all ranks and in all steps.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/gradient_sum.hpp"
#include "miniapp/network.hpp"
#include "miniapp/shards.hpp"

namespace lockstep {

struct Bucket {
  TensorRange tensors;  // of a row of gradients; the one behind the network's own tensors is the loss
  Interval elements;    // of the same
  int first_layer = 0;  // backward has to have come here
};

// In reverse layer order, the first with the loss. A bucket is filled with whole tensors up to `bytes` of float32
// gradients; a tensor of more than that has one to itself. 0: one bucket.
std::vector<Bucket> make_buckets(Network const& network, std::int64_t bytes);

std::string describe(Bucket const& bucket, Network const& network);  // "W3 to b4, loss"

}  // namespace lockstep
