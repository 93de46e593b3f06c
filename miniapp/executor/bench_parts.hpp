// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of hosts and of accelerators have in common: kernel_bench.cpp, lane_bench.cpp.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/cost.hpp"
#include "kernels/fingerprint.hpp"
#include "kernels/gradient_sum.hpp"
#include "kernels/kokkos_compat.hpp"
#include "kernels/median.hpp"
#include "kernels/sgd.hpp"
#include "miniapp/network.hpp"

namespace lockstep {

template <class T>
Buffer<T> bench_buffer(Space const& space, std::string const& label, std::int64_t size) {
  return Buffer<T>(Kokkos::view_alloc(space, "lockstep::bench::" + label), std::size_t(size));
}

// Runs until the space is idle again; seconds.
template <class Work>
double timed(Space const& space, Work const& work) {
  Kokkos::Timer timer;
  work();
  fence(space, "lockstep::bench::timed");
  return timer.seconds();
}

// Bytes read and written a second, copying 128 MiB.
inline double copy_rate(Space const& space) {
  std::int64_t const floats = std::int64_t(32) << 20;
  auto const from           = bench_buffer<float>(space, "copy_from", floats);
  auto const to             = bench_buffer<float>(space, "copy_to", floats);
  std::vector<double> rates;
  for (int sample = 0; sample < 7; ++sample)
    rates.push_back(8.0 * double(floats) / timed(space, [&] { Kokkos::deep_copy(space, to, from); }));
  return median(rates);
}

// Something to compute with.
inline void fill_images(Space const& space, Buffer<std::uint8_t> const& images, Buffer<std::uint8_t> const& labels,
                        int classes) {
  using Policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;
  Kokkos::parallel_for(
      "lockstep::bench::images", Policy(space, 0, std::int64_t(images.extent(0))),
      KOKKOS_LAMBDA(std::int64_t i) { images(i) = std::uint8_t(i * 37 + i / 251); });
  Kokkos::parallel_for(
      "lockstep::bench::labels", Policy(space, 0, std::int64_t(labels.extent(0))),
      KOKKOS_LAMBDA(std::int64_t i) { labels(i) = std::uint8_t(i % classes); });
}
inline void fill_parameters(Space const& space, Buffer<float> const& parameters) {
  Kokkos::parallel_for(
      "lockstep::bench::parameters",
      Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>(space, 0, std::int64_t(parameters.extent(0))),
      KOKKOS_LAMBDA(std::int64_t i) { parameters(i) = 0.001f * float((i * 7919) % 201 - 100); });
}

// measure(name, cost, bytes that it works on, run) of the kernels on the whole step's buffers: 16 rows of gradients, of
// `images` images together.
template <class Measure>
void measure_step(Space const& space, Network const& network, Buffer<float> const& parameters, std::int64_t images,
                  Measure const& measure) {
  std::int64_t const rows = 16, row = network.parameters + 1;
  TensorLayout layout{{0}};
  for (auto const& tensor : network.tensors) layout.offsets.push_back(tensor.offset + tensor.count);
  TensorLayout const tensors = layout;
  layout.offsets.push_back(row);
  GradientSum const sum(space, layout);
  auto const all_rows  = bench_buffer<float>(space, "all_rows", rows * row);
  auto const gradient  = bench_buffer<float>(space, "gradient", row);
  auto const step      = bench_buffer<float>(space, "step", network.parameters);
  auto const fixed     = bench_buffer<std::int64_t>(space, "fixed", row);
  auto const exponents = bench_buffer<std::int64_t>(space, "exponents", layout.tensors());
  auto const prints    = bench_buffer<std::uint64_t>(space, "prints", tensors.tensors());
  Kokkos::deep_copy(space, all_rows, 0.5f);
  double const n = double(row);
  measure("exact sum of 16 rows", Cost{0, 4.0 * n * (2 * rows + 5)}, 4.0 * n * rows, [&] {
    sum.exponents(space, all_rows, rows, exponents);
    sum.fixed_point(space, all_rows, rows, exponents, rows, fixed);
    sum.to_float(space, fixed, exponents, rows, images, gradient);
  });
  measure("plain sum of 16 rows", Cost{0, 4.0 * n * (rows + 3)}, 4.0 * n * rows, [&] {
    sum.plain(space, all_rows, rows, gradient);
    sum.divide(space, gradient, images);
  });
  measure("sgd", Cost{0, 12.0 * n}, 8.0 * n, [&] { sgd(space, 0.0f, step, parameters); });
  measure("fingerprints", Cost{0, 4.0 * n}, 4.0 * n, [&] { fingerprints(space, parameters, tensors, prints); });
}

}  // namespace lockstep
