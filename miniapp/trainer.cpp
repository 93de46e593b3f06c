// SPDX-License-Identifier: Apache-2.0
#include "miniapp/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <sstream>

#include "comm/communication_thread.hpp"
#include "kernels/error.hpp"
#include "kernels/fingerprint.hpp"
#include "kernels/gradient_sum.hpp"
#include "kernels/kokkos_compat.hpp"
#include "kernels/random.hpp"
#include "kernels/sgd.hpp"
#include "miniapp/sha256.hpp"
#include "miniapp/shards.hpp"
#include "miniapp/step_values.hpp"

namespace lockstep {
namespace {

constexpr double weight_deviation = 0.01;
constexpr bool one_memory         = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Memory>::accessible;

template <class T>
Buffer<T> allocate(Space const& space, char const* label, std::int64_t count) {
  return Buffer<T>(Kokkos::view_alloc(space, std::string("lockstep::trainer::") + label), std::size_t(count));
}

template <class T>
Buffer<T> part(Buffer<T> const& buffer, std::int64_t begin, std::int64_t end) {
  return Kokkos::subview(buffer, std::make_pair(std::size_t(begin), std::size_t(end)));
}

template <class T>
void copy_in(Space const& space, Buffer<T> const& to, std::vector<T> const& from) {
  Kokkos::View<T const*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> const view(from.data(),
                                                                                                from.size());
  Kokkos::deep_copy(space, part(to, 0, std::int64_t(from.size())), view);
  fence(space, "lockstep::trainer::copy_in");
}

template <class T>
std::vector<T> copy_out(Space const& space, Buffer<T> const& from) {
  std::vector<T> to(from.extent(0));
  Kokkos::View<T*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> const view(to.data(), to.size());
  Kokkos::deep_copy(space, view, from);
  fence(space, "lockstep::trainer::copy_out");
  return to;
}

DeviceDataset upload(Space const& space, Dataset const& host) {
  DeviceDataset device{allocate<std::uint8_t>(space, "images", std::int64_t(host.images.size())),
                       allocate<std::uint8_t>(space, "labels", host.count), host.count};
  copy_in(space, device.images, host.images);
  copy_in(space, device.labels, host.labels);
  return device;
}

// Tensors' places in a row of gradients; the loss is one more tensor behind them.
TensorLayout layout_of(Network const& network, bool with_loss) {
  TensorLayout layout;
  for (auto const& tensor : network.tensors) layout.offsets.push_back(tensor.offset);
  layout.offsets.push_back(network.parameters);
  if (with_loss) layout.offsets.push_back(network.parameters + 1);
  return layout;
}

// What the processes' runs must agree on, with its name.
std::vector<std::pair<char const*, std::string>> common_settings(TrainerOptions const& options, Network const& network,
                                                                 Dataset const& train, Dataset const& test) {
  std::ostringstream layers, weights;
  for (auto const& tensor : network.tensors) layers << tensor.name << " (" << tensor.count << ") ";
  for (double weight : options.weights)
    weights << weight << std::hexfloat << " (" << weight << std::defaultfloat << ") ";
  auto const data = [](Dataset const& set) { return std::to_string(set.count) + " images, SHA-256 " + set.sha256; };
  return {{"the network", layers.str()},
          {"the batch", std::to_string(options.batch)},
          {"the learning rate", options.learning_rate.text()},
          {"the seed", std::to_string(options.seed)},
          {"the reduction", options.reduction == Reduction::exact ? "exact" : "float"},
          {"the convolution", options.conv == Conv::direct ? "direct" : "gemm"},
          {"the allreduce algorithm", options.allreduce},
          {"the size of buckets", std::to_string(options.bucket_bytes)},
          {"overlap", options.overlap ? "on" : "off"},
          {"the number of micro-batches", std::to_string(options.accumulate)},
          {"graph", options.graph ? "on" : "off"},
          {"the list of weights", weights.str()},
          {"the training set", data(train)},
          {"the test set", data(test)}};
}

}  // namespace

struct Trainer::Impl {
  struct Device {
    Space space;
    Executor executor;
    DeviceDataset train, test;
    Buffer<std::int32_t> order;
    Buffer<float> parameters, rows, gradient;
    Buffer<std::int64_t> exponents, fixed, prints, correct;
    Buffer<std::uint64_t> print;
    Buffer<std::int32_t> numbers;  // these three where steps are graphs: of the minibatch's images
    Buffer<float> rate;
    Buffer<std::int64_t> verdict;
    Interval run{};          // of the shards in this step
    std::int64_t count = 0;  // of their rows
  };

  // The images of a step: entries [first, first + images) of the epoch's order, or the devices' numbers.
  struct Minibatch {
    std::int64_t first, images;
    ShardPlan plan;
    bool in_graph = false;
  };

  comm::Communicator& communicator;
  Network network;
  TrainerOptions options;
  TensorLayout row_layout, parameter_layout;
  std::vector<Device> devices;
  std::vector<GradientSum> sums;
  // Views of all local devices, as collectives take them: the whole, and bucket by bucket.
  std::vector<Buffer<std::int64_t>> exponents, prints, correct;
  std::vector<std::vector<Buffer<std::int64_t>>> bucket_exponents, fixed;  // by bucket
  std::vector<std::vector<Buffer<float>>> gradients;
  std::vector<Bucket> buckets;
  Segments segments;  // with overlap
  std::string overlap_notice;
  std::unique_ptr<comm::CommunicationThread> thread;  // with overlap
  double waited       = 0;                            // seconds of this step, for the thread
  std::int64_t images = 0, test_images = 0, step = 0, shuffled_epoch = -1;
  Divergence divergence;
  std::unique_ptr<DeviceGraph> graph;
  bool enqueued = false;  // what the graph is to hold, once

  Impl(comm::Communicator& world, Network net, Dataset const& train, Dataset const& test, TrainerOptions const& given)
      : communicator(world),
        network(std::move(net)),
        options(given),
        row_layout(layout_of(network, true)),
        parameter_layout(layout_of(network, false)),
        images(train.count),
        test_images(test.count) {
    LOCKSTEP_THROW_IF(options.batch < 1, ExitCode::usage,
                      "batch of " + std::to_string(options.batch) + "; expected 1 or more");
    bool const positive = std::any_of(options.weights.begin(), options.weights.end(), [](double w) { return w > 0; });
    LOCKSTEP_THROW_IF(!options.weights.empty() && (int(options.weights.size()) != communicator.size() || !positive),
                      ExitCode::usage,
                      std::to_string(options.weights.size()) + " weights for " + std::to_string(communicator.size()) +
                          " devices; expected one for each, not all 0");
    LOCKSTEP_THROW_IF(options.learning_rate.base_batch < 1, ExitCode::usage,
                      "base batch of " + std::to_string(options.learning_rate.base_batch) + "; expected 1 or more");
    LOCKSTEP_THROW_IF(options.accumulate < 1, ExitCode::usage,
                      std::to_string(options.accumulate) + " micro-batches; expected 1 or more");
    LOCKSTEP_THROW_IF(images < 1, ExitCode::usage, "no training images; expected 1 or more");
    for (auto const* data : {&train, &test})
      LOCKSTEP_THROW_IF(data->count > 0 && (data->height != network.input.height || data->width != network.input.width),
                        ExitCode::usage,
                        "images of " + std::to_string(data->height) + "x" + std::to_string(data->width) +
                            "; the network expects " + std::to_string(network.input.height) + "x" +
                            std::to_string(network.input.width));
    LOCKSTEP_THROW_IF(options.bucket_bytes < 0, ExitCode::usage,
                      "buckets of " + std::to_string(options.bucket_bytes) + " bytes; expected 0 or more");
    for (auto const& [what, value] : common_settings(options, network, train, test)) communicator.agree(what, value);
    if (options.graph) check_graph();

    buckets = make_buckets(network, options.bucket_bytes);
    if (options.overlap) cut_backward();
    for (int local = 0; local < communicator.local_size(); ++local) add_device(local, train, test);
    collect_views();
    if (!segments.first_layers.empty()) start_thread();
    if (options.graph) {
      communicator.prepare<std::int64_t>(options.allreduce, comm::Op::sum, 1);  // of the counts: see graph_obstacle
      graph = communicator.make_graph();
    }
    start();
  }

  void check_graph() const {
    std::string obstacle = communicator.graph_obstacle(options.allreduce);
    if (options.overlap) obstacle = "found overlap with backward, expected none";
    if (options.hook) obstacle = "found a hook, expected none";
    if (Kokkos::Profiling::profileLibraryLoaded())
      obstacle = "found a tool that listens to Kokkos, expected none: it would hear nothing of a graph's kernels";
    LOCKSTEP_THROW_IF(!obstacle.empty(), ExitCode::usage, "steps cannot be a graph: " + obstacle);
  }

  // A segment ends where a bucket does.
  void cut_backward() {
    if (!communicator.serves_side_threads()) {
      overlap_notice = one_memory ? "MPI takes calls from the main thread only (expected MPI_THREAD_SERIALIZED)"
                                  : "on this back end only the main thread launches kernels";
      return;
    }
    for (Bucket const& bucket : buckets)
      if (segments.first_layers.empty() || bucket.first_layer < segments.first_layers.back())
        segments.first_layers.push_back(bucket.first_layer);
    if (segments.first_layers.size() == 1) {
      overlap_notice = "the first bucket is complete only when backward ends (expected smaller buckets)";
      segments.first_layers.clear();
    }
  }

  // With all that its calls need made before: they allocate nothing and agree on nothing.
  void start_thread() {
    auto const length = [](auto const& buffers) { return std::int64_t(buffers[0].extent(0)); };
    for (std::size_t b = 0; b < buckets.size(); ++b)
      if (options.reduction == Reduction::exact) {
        communicator.prepare<std::int64_t>(options.allreduce, comm::Op::max, length(bucket_exponents[b]));
        communicator.prepare<std::int64_t>(options.allreduce, comm::Op::sum, length(fixed[b]));
      } else {
        communicator.prepare<float>(options.allreduce, comm::Op::sum, length(gradients[b]));
      }
    thread = std::make_unique<comm::CommunicationThread>();
  }

  void add_device(int local, Dataset const& train, Dataset const& test) {
    Space const& space      = communicator.instance(local);
    bool const share        = one_memory && local > 0;  // read-only data needs one copy per memory
    std::int64_t const rows = most_shards(communicator.rank(local)), row = row_layout.count();
    int const tensors = row_layout.tensors();
    devices.push_back(
        {space, Executor(space, network, options.conv, segments_of(communicator.rank(local))),
         share ? devices[0].train : upload(space, train), share ? devices[0].test : upload(space, test),
         share && !options.hook ? devices[0].order : allocate<std::int32_t>(space, "order", images),
         allocate<float>(space, "parameters", network.parameters), allocate<float>(space, "rows", rows * row),
         allocate<float>(space, "gradient", row), allocate<std::int64_t>(space, "exponents", tensors),
         allocate<std::int64_t>(space, "fixed", row), allocate<std::int64_t>(space, "prints", 2 * (tensors - 1)),
         allocate<std::int64_t>(space, "correct", 1), allocate<std::uint64_t>(space, "print", tensors - 1),
         allocate<std::int32_t>(space, "numbers", options.graph ? options.batch : 0),
         allocate<float>(space, "rate", options.graph ? 1 : 0),
         allocate<std::int64_t>(space, "verdict", options.graph ? tensors + 2 * (tensors - 1) + 1 : 0)});
    sums.emplace_back(space, row_layout);
    visit(Stage::allocated, std::size_t(local), 0);
  }

  void visit(Stage stage, std::size_t local, std::int64_t n, std::vector<std::int32_t>* order = nullptr,
             Interval* interval = nullptr, std::int64_t* count = nullptr, TensorRange tensors = {},
             std::vector<Interval>* parts = nullptr) {
    if (!options.hook) return;
    Device& device = devices[local];
    StepState state{stage,
                    step + 1,
                    communicator.rank(int(local)),
                    communicator.size(),
                    device.space,
                    device.parameters,
                    device.rows,
                    device.gradient,
                    device.exponents,
                    device.fixed,
                    device.correct,
                    n,
                    tensors,
                    order,
                    interval,
                    count,
                    parts};
    if (stage == Stage::allocated || stage == Stage::started) state.step = step;
    options.hook(state);
  }

  void collect_views() {
    for (auto const& device : devices) {
      exponents.push_back(device.exponents);
      prints.push_back(device.prints);
      correct.push_back(device.correct);
    }
    form_buckets();
  }

  void form_buckets() {
    for (auto* views : {&bucket_exponents, &fixed}) views->assign(buckets.size(), {});
    gradients.assign(buckets.size(), {});
    for (std::size_t local = 0; local < devices.size(); ++local) {
      auto const& device = devices[local];
      std::vector<Interval> parts;
      for (Bucket const& bucket : buckets) parts.push_back(bucket.elements);
      visit(Stage::bucketed, local, 0, nullptr, nullptr, nullptr, {}, &parts);
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        TensorRange const& tensors = buckets[b].tensors;
        bucket_exponents[b].push_back(part(device.exponents, tensors.begin, tensors.end));
        fixed[b].push_back(part(device.fixed, parts[b].begin, parts[b].end));
        gradients[b].push_back(part(device.gradient, parts[b].begin, parts[b].end));
      }
    }
  }

  void start() {
    std::vector<float> values(std::size_t(network.parameters), 0.0f);
    if (communicator.process() == 0) {
      for (auto const& layer : network.layers) {
        if (layer.weight < 0) continue;
        Tensor const& weight = network.tensors[std::size_t(layer.weight)];
        auto const drawn     = normal_values(options.seed, std::uint64_t(layer.weight), weight.count, weight_deviation);
        std::copy(drawn.begin(), drawn.end(), values.begin() + weight.offset);
      }
      copy_in(devices[0].space, devices[0].parameters, values);
    }
    share();
  }

  // Gives rank 0's parameters to all.
  void share() {
    std::vector<Buffer<float>> all;
    for (auto const& device : devices) all.push_back(device.parameters);
    communicator.broadcast(all);
    for (std::size_t local = 0; local < devices.size(); ++local) visit(Stage::started, local, 0);
    compare_replicas();
  }

  std::int64_t steps_per_epoch() const { return (images + options.batch - 1) / options.batch; }

  Interval shards_of(ShardPlan const& plan, int rank) const {
    return options.weights.empty() ? plan.shards_of(rank, communicator.size()) : plan.shards_of(rank, options.weights);
  }

  // Of the full minibatch and of an epoch's short last one, which can have more shards.
  std::int64_t most_shards(int rank) const {
    std::int64_t most = 0;
    for (std::int64_t n : {std::min(options.batch, images), images % options.batch})
      most = std::max(most, shards_of(ShardPlan::for_batch(n), rank).size());
    return most;
  }

  // The last of the micro-batches that has shards is the one whose gradients complete the step's.
  std::int64_t last_micro(Interval run) const { return std::min(options.accumulate, run.size()) - 1; }

  Segments segments_of(int rank) const {
    Segments own = segments;
    for (std::int64_t n : {std::min(options.batch, images), images % options.batch}) {
      ShardPlan const plan = ShardPlan::for_batch(n);
      Interval const run   = shards_of(plan, rank);
      if (run.size() == 0) continue;
      auto const shards = comm::chunk_range(run.size(), options.accumulate, last_micro(run)).size();
      own.blocks        = std::max(own.blocks, blocks_of(plan, shards));
    }
    return own;
  }

  void shuffle(std::int64_t epoch) {
    if (epoch == shuffled_epoch) return;
    auto const order = permutation(images, options.seed, std::uint64_t(epoch));
    for (std::size_t local = 0; local < devices.size(); ++local) {
      if (local > 0 && one_memory && !options.hook) continue;
      auto own = order;
      visit(Stage::shuffled, local, 0, &own);
      copy_in(devices[local].space, devices[local].order, own);
    }
    shuffled_epoch = epoch;
  }

  StepResult advance() {
    ScopedRegion const region("lockstep::trainer::step");
    communicator.set_stage("training step " + std::to_string(step + 1));
    double const communicated = communicator.seconds();
    waited                    = 0;
    shuffle(step / steps_per_epoch());
    std::int64_t const first = step % steps_per_epoch() * options.batch;
    std::int64_t const n     = std::min(options.batch, images - first);
    auto const rate          = float(options.learning_rate.at(step, options.batch, steps_per_epoch()));
    if (graph && n == options.batch) return advance_by_graph(first, rate);
    Minibatch const batch{first, n, ShardPlan::for_batch(n)};
    if (options.hook) form_buckets();

    add_up(batch);
    // What the thread did while nobody waited for it.
    double const hidden = thread ? std::max(0.0, communicator.seconds() - communicated - waited) : 0;
    to_gradient(batch);
    for (std::size_t local = 0; local < devices.size(); ++local) {
      auto& device     = devices[local];
      auto const track = region_of(local);
      visit(Stage::divided, local, n);
      sgd(device.space, rate, part(device.gradient, 0, network.parameters), device.parameters);
      visit(Stage::updated, local, n);
    }
    ++step;
    compare_replicas();
    auto const loss            = copy_out(devices[0].space, loss_of(devices[0]));
    double const communication = communicator.seconds() - communicated;
    return {step, n, double(loss[0]), communication, communication - hidden};
  }

  // A step whose work the host only launches; it reads the verdict behind it. The first time that work is enqueued as
  // ever, so that memory and kernels are there when it is captured.
  StepResult advance_by_graph(std::int64_t first, float rate) {
    Minibatch const batch{0, options.batch, ShardPlan::for_batch(options.batch), true};
    for (auto& device : devices) set_step(device.space, device.order, first, rate, device.numbers, device.rate);
    if (!enqueued) {
      enqueue(batch);
      enqueued = true;
    } else {
      if (!graph->captured()) graph->capture([this, batch] { enqueue(batch); });
      graph->launch();
    }
    auto const verdict = copy_out(devices[0].space, devices[0].verdict);
    auto const codes = verdict.begin() + row_layout.tensors(), prints = verdict.end() - 1;
    refuse_not_finite({verdict.begin(), codes});
    ++step;
    if (communicator.size() > 1) note_divergence({codes, prints});
    auto const bits = std::uint32_t(verdict.back());
    float loss      = 0;
    std::memcpy(&loss, &bits, sizeof loss);
    return {step, batch.images, double(loss), 0, 0};
  }

  // All of a step that is in its graph: nothing here depends on what the host knows of the step.
  void enqueue(Minibatch const& batch) {
    add_up(batch);
    to_gradient(batch);
    for (auto& device : devices)
      sgd(device.space, device.rate, device.exponents, part(device.gradient, 0, network.parameters), device.parameters);
    if (communicator.size() > 1) compare_prints();
    auto& device = devices[0];
    collect(device.space, device.exponents, device.prints, loss_of(device), device.verdict);
  }

  Buffer<float> loss_of(Device const& device) const {
    return part(device.gradient, network.parameters, row_layout.count());
  }

  // The gradients of all shards and their sums over all devices.
  void add_up(Minibatch const& batch) {
    for (std::size_t local = 0; local < devices.size(); ++local) {
      auto& device     = devices[local];
      auto const track = region_of(local);
      device.run       = shards_of(batch.plan, communicator.rank(int(local)));
      visit(Stage::planned, local, batch.images, nullptr, &device.run);
      std::int64_t const whole = thread ? last_micro(device.run) : options.accumulate;
      for (std::int64_t micro = 0; micro < whole; ++micro) shard_gradients(device, batch, micro);
    }
    if (thread) {
      for (int segment = 0; segment < int(segments.first_layers.size()); ++segment) backward_segment(segment, batch);
      wait();
    } else {
      sum_rows({}, batch, exponents);
      for (std::size_t b = 0; b < buckets.size(); ++b) reduce(b);
    }
  }

  DetailedRegion region_of(std::size_t local) const { return device_region(communicator.rank(int(local))); }
  DetailedRegion region_of_all() const {
    return device_region(communicator.rank(0), communicator.rank(communicator.local_size() - 1));
  }

  void shard_gradients(Device& device, Minibatch const& batch, std::int64_t micro, int segment = Executor::whole) {
    auto const piece = comm::chunk_range(device.run.size(), options.accumulate, micro);
    if (piece.size() == 0) return;
    Interval const shards{device.run.begin + piece.begin, device.run.begin + piece.end};
    DetailedRegion const region([&] {
      return "lockstep::trainer::shards " + std::to_string(shards.begin) + " to " + std::to_string(shards.end - 1) +
             " of " + std::to_string(batch.plan.shards);
    });
    device.executor.gradients(device.space, device.train, batch.in_graph ? device.numbers : device.order, batch.first,
                              batch.plan, shards, device.parameters,
                              part(device.rows, piece.begin * row_layout.count(), piece.end * row_layout.count()),
                              segment);
  }

  // Of all devices; the buckets that are then complete are handed to the thread.
  void backward_segment(int segment, Minibatch const& batch) {
    for (std::size_t local = 0; local < devices.size(); ++local) {
      auto const track = region_of(local);
      Device& device   = devices[local];
      if (device.run.size() > 0) shard_gradients(device, batch, last_micro(device.run), segment);
    }
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      if (buckets[b].first_layer != segments.first_layers[std::size_t(segment)]) continue;
      sum_rows(buckets[b].tensors, batch, bucket_exponents[b]);
      thread->post([this, b] { reduce(b); });
    }
  }

  // Each device's sums over its own rows; exact ones with exponents that all devices agree on first.
  void sum_rows(TensorRange tensors, Minibatch const& batch, std::vector<Buffer<std::int64_t>> const& codes) {
    ScopedRegion const region("lockstep::trainer::sum_rows");
    bool const exact = options.reduction == Reduction::exact;
    for (std::size_t local = 0; local < devices.size(); ++local) {
      auto& device     = devices[local];
      auto const track = region_of(local);
      device.count     = device.run.size();
      visit(Stage::computed, local, batch.images, nullptr, nullptr, &device.count, tensors);
      if (exact) {
        sums[local].exponents(device.space, device.rows, device.count, device.exponents, tensors);
        visit(Stage::exponents_found, local, batch.images, nullptr, nullptr, nullptr, tensors);
      } else {
        sums[local].plain(device.space, device.rows, device.count, device.gradient, tensors);
      }
    }
    if (!exact) return;
    auto const agree = [&] { communicator.allreduce(options.allreduce, comm::Op::max, codes); };
    if (thread) {
      thread->post(agree);
      wait();
    } else {
      agree();
    }
    for (std::size_t local = 0; local < devices.size(); ++local)
      visit(Stage::exponents_agreed, local, batch.images, nullptr, nullptr, nullptr, tensors);
    if (!thread && !batch.in_graph) refuse_not_finite();
    for (std::size_t local = 0; local < devices.size(); ++local) {
      auto& device     = devices[local];
      auto const track = region_of(local);
      sums[local].fixed_point(device.space, device.rows, device.count, device.exponents, batch.plan.shards,
                              device.fixed, tensors);
      visit(Stage::summed, local, batch.images, nullptr, nullptr, nullptr, tensors);
    }
  }

  // All devices' sums of a bucket.
  void reduce(std::size_t b) {
    bool const exact = options.reduction == Reduction::exact;
    auto const track = region_of_all();
    DetailedRegion const region([&] {
      return "lockstep::trainer::bucket " + std::to_string(b + 1) + " of " + std::to_string(buckets.size()) + ", " +
             lockstep::describe(buckets[b], network) + ", " +
             std::to_string(buckets[b].elements.size() * (exact ? 8 : 4)) + " bytes";
    });
    if (exact)
      communicator.allreduce(options.allreduce, comm::Op::sum, fixed[b]);
    else
      communicator.allreduce(options.allreduce, comm::Op::sum, gradients[b]);
  }

  // Until the thread has done all that it was given.
  void wait() {
    auto const track = region_of_all();
    ScopedRegion const region("lockstep::trainer::wait");
    auto const start = std::chrono::steady_clock::now();
    thread->wait();
    waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // Mean gradient and loss of the minibatch.
  void to_gradient(Minibatch const& batch) {
    ScopedRegion const region("lockstep::trainer::to_gradient");
    bool const exact = options.reduction == Reduction::exact;
    if (exact && thread) refuse_not_finite();  // of all buckets at once: the verdict is that of one bucket
    for (std::size_t local = 0; local < devices.size(); ++local) {
      auto& device     = devices[local];
      auto const track = region_of(local);
      if (exact) {
        std::int64_t divisor = batch.images;
        visit(Stage::reduced, local, batch.images, nullptr, nullptr, &divisor);
        sums[local].to_float(device.space, device.fixed, device.exponents, batch.plan.shards, divisor, device.gradient);
      } else {
        sums[local].divide(device.space, device.gradient, batch.images);
        sums[local].exponents(device.space, device.gradient, 1, device.exponents);
      }
    }
    if (!exact && !batch.in_graph) refuse_not_finite();
  }

  // The exponents are the same on all ranks, and so is this verdict.
  void refuse_not_finite() const { refuse_not_finite(copy_out(devices[0].space, devices[0].exponents)); }
  void refuse_not_finite(std::vector<std::int64_t> const& codes) const {
    for (std::size_t t = 0; t < codes.size(); ++t)
      if (codes[t] >= exponent_not_finite)
        throw NotFinite("step " + std::to_string(step + 1) + ": " +
                        (t < network.tensors.size() ? "the gradient of " + network.tensors[t].name : "the loss") +
                        " is not finite");
  }

  void compare_replicas() {
    if (communicator.size() == 1) return;
    ScopedRegion const region("lockstep::trainer::compare_replicas");
    compare_prints();
    note_divergence(copy_out(devices[0].space, devices[0].prints));
  }

  // Leaves the largest and the smallest of all devices' fingerprints on each of them.
  void compare_prints() {
    for (std::size_t local = 0; local < devices.size(); ++local) {
      auto const& device = devices[local];
      auto const track   = region_of(local);
      fingerprints(device.space, device.parameters, parameter_layout, device.print);
      both_ways(device.space, device.print, device.prints);
    }
    communicator.allreduce(options.allreduce, comm::Op::max, prints);
  }

  void note_divergence(std::vector<std::int64_t> const& most) {
    std::size_t const tensors = network.tensors.size();
    for (std::size_t t = 0; t < tensors && !divergence.found; ++t)
      if (most[t] != ~most[tensors + t]) divergence = {true, step, network.tensors[t].name, ranks_that_differ(t)};
  }

  std::string ranks_that_differ(std::size_t tensor) {
    std::vector<std::vector<std::uint64_t>> all;  // [local][process]
    for (auto const& device : devices) all.push_back(communicator.gather(copy_out(device.space, device.print)[tensor]));
    std::string ranks;
    for (int process = 0; process < communicator.processes(); ++process)
      for (int local = 0; local < communicator.local_size(); ++local)
        if (all[std::size_t(local)][std::size_t(process)] != all[0][0])
          ranks += (ranks.empty() ? "" : ",") + std::to_string(process * communicator.local_size() + local);
    return ranks;
  }

  std::int64_t count_correct() {
    ScopedRegion const region("lockstep::trainer::evaluate");
    communicator.set_stage("the evaluation");
    for (std::size_t local = 0; local < devices.size(); ++local) {
      auto& device     = devices[local];
      auto const track = region_of(local);
      auto const range = comm::chunk_range(test_images, communicator.size(), communicator.rank(int(local)));
      Interval counted{range.begin, range.end};
      visit(Stage::evaluating, local, test_images, nullptr, &counted);
      Kokkos::deep_copy(device.space, device.correct, std::int64_t(0));
      device.executor.count_correct(device.space, device.test, counted, device.parameters, device.correct);
      visit(Stage::counted, local, test_images, nullptr, &counted);
    }
    communicator.allreduce(options.allreduce, comm::Op::sum, correct);
    return copy_out(devices[0].space, devices[0].correct)[0];
  }

  std::int64_t count_correct_alone() {
    auto& device = devices[0];
    Kokkos::deep_copy(device.space, device.correct, std::int64_t(0));
    device.executor.count_correct(device.space, device.test, {0, test_images}, device.parameters, device.correct);
    return copy_out(device.space, device.correct)[0];
  }
};

Trainer::Trainer(comm::Communicator& communicator, Network network, Dataset const& train, Dataset const& test,
                 TrainerOptions const& options)
    : m_impl(std::make_unique<Impl>(communicator, std::move(network), train, test, options)) {}

Trainer::~Trainer() = default;

Network const& Trainer::network() const {
  return m_impl->network;
}
std::int64_t Trainer::steps_per_epoch() const {
  return m_impl->steps_per_epoch();
}
std::int64_t Trainer::step() const {
  return m_impl->step;
}
std::vector<Bucket> const& Trainer::buckets() const {
  return m_impl->buckets;
}
bool Trainer::overlaps() const {
  return m_impl->thread != nullptr;
}
std::string const& Trainer::overlap_notice() const {
  return m_impl->overlap_notice;
}
StepResult Trainer::advance() {
  return m_impl->advance();
}
Divergence const& Trainer::divergence() const {
  return m_impl->divergence;
}
std::int64_t Trainer::count_correct() {
  return m_impl->count_correct();
}
std::int64_t Trainer::count_correct_alone() {
  return m_impl->count_correct_alone();
}

std::vector<float> Trainer::parameters(int local) const {
  auto const& device = m_impl->devices.at(std::size_t(local));
  return copy_out(device.space, device.parameters);
}

void Trainer::restore(std::vector<float> const& parameters, std::int64_t step) {
  LOCKSTEP_THROW_IF(
      m_impl->communicator.process() == 0 && std::int64_t(parameters.size()) != m_impl->network.parameters,
      ExitCode::usage,
      std::to_string(parameters.size()) + " parameters; the network has " + std::to_string(m_impl->network.parameters));
  if (m_impl->communicator.process() == 0) copy_in(m_impl->devices[0].space, m_impl->devices[0].parameters, parameters);
  m_impl->step = step;
  m_impl->share();
}

std::string Trainer::parameters_sha256() const {
  static_assert(sizeof(float) == 4 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
                "the hash is of little-endian float32");
  auto const values = parameters(0);
  return sha256(values.data(), values.size() * sizeof(float));
}

}  // namespace lockstep
