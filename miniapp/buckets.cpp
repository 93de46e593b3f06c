// SPDX-License-Identifier: Apache-2.0
#include "miniapp/buckets.hpp"

#include <algorithm>

namespace lockstep {
namespace {

int layer_of(Network const& network, int tensor) {
  for (std::size_t l = 0; l < network.layers.size(); ++l)
    if (network.layers[l].weight == tensor || network.layers[l].bias == tensor) return int(l);
  return 0;
}

}  // namespace

std::vector<Bucket> make_buckets(Network const& network, std::int64_t bytes) {
  std::vector<Bucket> buckets;
  int const tensors         = int(network.tensors.size());
  std::int64_t const values = bytes / std::int64_t(sizeof(float));
  Bucket bucket{{tensors, tensors + 1}, {network.parameters, network.parameters + 1}, 0};
  for (int t = tensors - 1; t >= 0; --t) {
    Tensor const& tensor = network.tensors[std::size_t(t)];
    bool const empty     = bucket.tensors.begin == tensors;  // but for the loss
    if (bytes > 0 && !empty && std::min(bucket.elements.end, network.parameters) - tensor.offset > values) {
      buckets.push_back(bucket);
      bucket = {{t + 1, t + 1}, {tensor.offset + tensor.count, tensor.offset + tensor.count}, 0};
    }
    bucket.tensors.begin  = t;
    bucket.elements.begin = tensor.offset;
    bucket.first_layer    = layer_of(network, t);
  }
  bucket.first_layer = 0;
  buckets.push_back(bucket);
  return buckets;
}

std::string describe(Bucket const& bucket, Network const& network) {
  int const tensors = int(network.tensors.size());
  int const first = bucket.tensors.begin, last = std::min(bucket.tensors.end, tensors) - 1;
  std::string text = first <= last ? network.tensors[std::size_t(first)].name : "";
  if (first < last) text += " to " + network.tensors[std::size_t(last)].name;
  if (bucket.tensors.end > tensors) text += text.empty() ? "loss" : ", loss";
  return text;
}

}  // namespace lockstep
