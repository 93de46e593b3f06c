// SPDX-License-Identifier: Apache-2.0
// The executor where kernels run on an accelerator; executor.cpp is the one of hosts.
#include "kernels/error.hpp"
#include "kernels/kokkos_compat.hpp"
#include "miniapp/executor.hpp"
#include "miniapp/executor/checks.hpp"
#include "miniapp/executor/lane_pass.hpp"

namespace lockstep {

struct Executor::Impl {
  LanePass pass;

  // A range of the data set, in its own order.
  LaneUnits range(DeviceDataset const& data, Interval images) const {
    check_images(pass.plan(), data, images);
    return {data.images.data(), data.labels.data(), nullptr, images.begin, images.size(), lanes};
  }
};

Executor::Executor(Space const& space, Network const& network, Conv conv, Segments const& segments)
    : m_impl(std::make_unique<Impl>(Impl{LanePass(space, network)})) {
  LOCKSTEP_THROW_IF(conv == Conv::gemm, ExitCode::usage,
                    std::string("convolutions by gemm on ") + Space::name() + "; expected a host back end");
  LOCKSTEP_THROW_IF(!segments.first_layers.empty(), ExitCode::usage,
                    "executor: backward in segments on an accelerator; expected a host back end");
  fence(space, "lockstep::executor::construct");
}
Executor::~Executor()                              = default;
Executor::Executor(Executor&&) noexcept            = default;
Executor& Executor::operator=(Executor&&) noexcept = default;

void Executor::gradients(Space const& space, DeviceDataset const& data, Buffer<const std::int32_t> const& order,
                         std::int64_t first, ShardPlan const& plan, Interval run, Buffer<const float> const& parameters,
                         Buffer<float> const& shard_gradients, int segment) {
  ScopedRegion const region("lockstep::executor::gradients");
  LOCKSTEP_THROW_IF(segment != whole, ExitCode::wrong_result, "executor: segment " + std::to_string(segment) + " of 0");
  Plan const& network = m_impl->pass.plan();
  check_gradients(network, order, first, plan, run, parameters, shard_gradients);
  check_images(network, data, {0, data.count});
  m_impl->pass.gradients(space, lane_units(data, order, first, plan, run, network.parameters + 1, shard_gradients),
                         parameters.data());
}

void Executor::count_correct(Space const& space, DeviceDataset const& data, Interval images,
                             Buffer<const float> const& parameters, Buffer<std::int64_t> const& correct) {
  ScopedRegion const region("lockstep::executor::count_correct");
  check_parameters(m_impl->pass.plan(), parameters);
  m_impl->pass.count_correct(space, m_impl->range(data, images), parameters.data(), correct.data());
}

void Executor::logits(Space const& space, DeviceDataset const& data, Interval images,
                      Buffer<const float> const& parameters, Buffer<float> const& out) {
  ScopedRegion const region("lockstep::executor::logits");
  check_parameters(m_impl->pass.plan(), parameters);
  check_logits(m_impl->pass.plan(), images, out);
  m_impl->pass.logits(space, m_impl->range(data, images), parameters.data(), out.data());
}

}  // namespace lockstep
