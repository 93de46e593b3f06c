// SPDX-License-Identifier: Apache-2.0
// The kernels under test on one device, and the reference on the same images.
#pragma once
#include <vector>

#include "miniapp/data/dataset.hpp"
#include "miniapp/executor.hpp"
#include "miniapp/network.hpp"
#include "miniapp/shards.hpp"
#include "verify/check.hpp"
#include "verify/values.hpp"

namespace lockstep::verify {

// Images whose activations keep clear of relu's kinks by `distance` (see ReferenceNetwork::kink_distance), so that
// float32 and float64 take the same side everywhere: the first `count` such of the noise images of `seed`.
Dataset clear_noise(Network const& network, Values const& parameters, std::int64_t count, std::uint64_t seed,
                    double distance);

struct GradientRun {
  ShardPlan plan;
  std::vector<Values> rows;  // a shard's: gradients, then the summed loss
  // What rounding errors of the rows are relative to: of the gradients, see ReferenceNetwork::add_magnitude; of the
  // loss, the logits whose difference it is. Of the reference only.
  std::vector<Values> magnitudes;
  Values logits;  // [image][class]
  std::int64_t correct = 0;
};
GradientRun run_kernels(Context const& context, Network const& network, Dataset const& data, Values const& parameters,
                        Conv conv = Conv::direct);
GradientRun run_reference(Network const& network, Dataset const& data, Values const& parameters);

}  // namespace lockstep::verify
