// SPDX-License-Identifier: Apache-2.0
#include "verify/kernel_run.hpp"

#include <cmath>
#include <numeric>

#include "verify/cases.hpp"
#include "verify/reference.hpp"
#include "verify/transfer.hpp"

namespace lockstep::verify {

Dataset clear_noise(Network const& network, Values const& parameters, std::int64_t count, std::uint64_t seed,
                    double distance) {
  ReferenceNetwork const reference(network);
  int const height = network.input.height, width = network.input.width;
  std::int64_t const pixels = std::int64_t(height) * width;
  Dataset result{height, width, 0, {}, {}, ""};
  while (result.count < count) {
    Dataset const more = noise(seed++, 16, height, width);
    for (std::int64_t i = 0; i < more.count && result.count < count; ++i) {
      if (reference.kink_distance(image_values(more.images, pixels, i), parameters) < distance) continue;
      result.images.insert(result.images.end(), more.images.begin() + i * pixels,
                           more.images.begin() + (i + 1) * pixels);
      result.labels.push_back(more.labels[std::size_t(i)]);
      ++result.count;
    }
  }
  return result;
}

GradientRun run_kernels(Context const& context, Network const& network, Dataset const& data, Values const& parameters,
                        Conv conv) {
  Space const space = context.runtime().instances(1).front();
  DeviceDataset const dataset{to_device(space, data.images), to_device(space, data.labels), data.count};
  std::vector<std::int32_t> order(std::size_t(data.count));
  std::iota(order.begin(), order.end(), 0);
  Buffer<std::int32_t> const device_order = to_device(space, order);
  Buffer<float> const device_parameters   = to_device(space, to_float(parameters));

  GradientRun run;
  run.plan               = ShardPlan::for_batch(data.count);
  std::int64_t const row = network.parameters + 1;
  Buffer<float> rows     = new_buffer<float>(space, run.plan.shards * row);
  Executor executor(space, network, conv);
  executor.gradients(space, dataset, device_order, 0, run.plan, {0, run.plan.shards}, device_parameters, rows);
  std::vector<float> flat = to_host(space, rows);
  if (context.plant().in_kernels) context.plant().in_kernels(network, flat);
  for (std::int64_t s = 0; s < run.plan.shards; ++s)
    run.rows.emplace_back(flat.begin() + s * row, flat.begin() + (s + 1) * row);

  Buffer<float> const logits = new_buffer<float>(space, data.count * network.classes);
  executor.logits(space, dataset, {0, data.count}, device_parameters, logits);
  run.logits = to_double(to_host(space, logits));

  Buffer<std::int64_t> const correct = to_device(space, std::vector<std::int64_t>{0});
  executor.count_correct(space, dataset, {0, data.count}, device_parameters, correct);
  run.correct = to_host(space, correct)[0];
  return run;
}

GradientRun run_reference(Network const& network, Dataset const& data, Values const& parameters) {
  ReferenceNetwork const reference(network);
  std::int64_t const pixels = network.input.size();
  GradientRun run;
  run.plan = ShardPlan::for_batch(data.count);
  for (std::int64_t s = 0; s < run.plan.shards; ++s) {
    Values row(std::size_t(network.parameters), 0.0), magnitude = row;
    double loss = 0, terms = 0;  // of log(sum of exp) - logit
    Interval const images = run.plan.images_of(s);
    for (std::int64_t i = images.begin; i < images.end; ++i) {
      Values const image = image_values(data.images, pixels, i);
      int const label    = data.labels[std::size_t(i)];
      loss += reference.add_gradient(image, label, parameters, row);
      reference.add_magnitude(image, label, parameters, magnitude);
      Values const logits = reference.logits(image, parameters);
      terms += 2 * largest(logits) + std::log(double(network.classes));
      run.logits.insert(run.logits.end(), logits.begin(), logits.end());
      run.correct += reference.prediction(image, parameters) == label;
    }
    row.push_back(loss);
    magnitude.push_back(terms);
    run.rows.push_back(std::move(row));
    run.magnitudes.push_back(std::move(magnitude));
  }
  return run;
}

}  // namespace lockstep::verify
