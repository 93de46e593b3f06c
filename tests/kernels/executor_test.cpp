// SPDX-License-Identifier: Apache-2.0
// The executor's kernels against plain loops in double, and the promises about bits: a shard's row depends on its
// images alone.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "kernels/error.hpp"
#include "miniapp/executor.hpp"
#include "miniapp/executor/block.hpp"
#include "miniapp/executor/kernel_bench.hpp"
#include "miniapp/executor/lane_pass.hpp"
#include "tests/kernels/buffers.hpp"

namespace lockstep {
namespace {

// Forward and backward of one image in double.
struct Reference {
  Network const& network;
  std::vector<float> const& parameters;

  std::vector<std::vector<double>> forward(std::uint8_t const* image) const {
    std::vector<std::vector<double>> values(1);
    for (std::int64_t i = 0; i < network.input.size(); ++i) values[0].push_back(double(float(image[i]) / 255.0f));
    for (Layer const& layer : network.layers) {
      auto const& x = values.back();
      std::vector<double> y(layer.output.size(), 0.0);
      visit(layer, [&](std::int64_t o, std::int64_t i, double w, std::int64_t) { y[o] += w * x[i]; });
      if (layer.kind == LayerKind::relu)
        for (std::size_t i = 0; i < y.size(); ++i) y[i] = std::max(0.0, x[i]);
      if (layer.bias >= 0) {
        auto const per = std::int64_t(y.size()) / network.tensors[layer.bias].count;
        for (std::size_t i = 0; i < y.size(); ++i) y[i] += parameters[network.tensors[layer.bias].offset + i / per];
      }
      values.push_back(std::move(y));
    }
    return values;
  }

  double backward(std::uint8_t const* image, int label, std::vector<double>& gradient) const {
    auto const values     = forward(image);
    std::vector<double> d = values.back();
    double highest = d[0], sum = 0.0;
    for (double z : d) highest = std::max(highest, z);
    for (double z : d) sum += std::exp(z - highest);
    double const loss = std::log(sum) - (d[label] - highest);
    for (double& z : d) z = std::exp(z - highest) / sum;
    d[label] -= 1.0;
    for (std::size_t l = network.layers.size(); l-- > 0;) {
      Layer const& layer = network.layers[l];
      std::vector<double> dx(layer.input.size(), 0.0);
      visit(layer, [&](std::int64_t o, std::int64_t i, double w, std::int64_t at) {
        dx[i] += w * d[o];
        if (at >= 0) gradient[at] += d[o] * values[l][i];
      });
      if (layer.kind == LayerKind::relu)
        for (std::size_t i = 0; i < dx.size(); ++i) dx[i] = values[l][i] > 0.0 ? d[i] : 0.0;
      if (layer.bias >= 0) {
        auto const per = std::int64_t(d.size()) / network.tensors[layer.bias].count;
        for (std::size_t i = 0; i < d.size(); ++i) gradient[network.tensors[layer.bias].offset + i / per] += d[i];
      }
      d = std::move(dx);
    }
    return loss;
  }

 private:
  // visitor(output, input, factor, parameter or -1) for every product of a linear layer.
  template <class Visitor>
  void visit(Layer const& layer, Visitor const& visitor) const {
    Shape const in = layer.input, out = layer.output;
    int const k   = layer.kernel;
    auto const at = layer.weight >= 0 ? network.tensors[layer.weight].offset : 0;
    if (layer.kind == LayerKind::dense) {
      for (std::int64_t i = 0; i < in.size(); ++i)
        for (std::int64_t o = 0; o < out.size(); ++o)
          visitor(o, i, parameters[at + i * out.size() + o], at + i * out.size() + o);
    } else if (layer.kind != LayerKind::relu) {
      bool const conv = layer.kind == LayerKind::conv2d;
      int const step  = conv ? 1 : k;
      for (int c = 0; c < out.channels; ++c)
        for (int r = 0; r < out.height; ++r)
          for (int q = 0; q < out.width; ++q)
            for (int i = conv ? 0 : c; i < (conv ? in.channels : c + 1); ++i)
              for (int u = 0; u < k; ++u)
                for (int v = 0; v < k; ++v) {
                  auto const w = conv ? at + ((std::int64_t(c) * in.channels + i) * k + u) * k + v : -1;
                  visitor((std::int64_t(c) * out.height + r) * out.width + q,
                          (std::int64_t(i) * in.height + r * step + u) * in.width + q * step + v,
                          conv ? parameters[w] : 1.0 / (k * k), w);
                }
    }
  }
};

std::vector<Conv> convs() {
  return on_host ? std::vector<Conv>{Conv::direct, Conv::gemm} : std::vector<Conv>{Conv::direct};
}

struct Problem {
  Network network;
  std::vector<std::uint8_t> images, labels;
  std::vector<float> parameters;
  std::vector<std::int32_t> order;
  DeviceDataset data;
  Conv conv = Conv::direct;

  Problem(Network const& net, int count, float scale = 0.15f) : network(net) {
    std::mt19937 random(7);
    for (std::int64_t i = 0; i < count * network.input.size(); ++i) images.push_back(std::uint8_t(random()));
    for (int i = 0; i < count; ++i) labels.push_back(std::uint8_t(random() % unsigned(network.classes)));
    std::normal_distribution<float> normal(0.0f, scale);
    for (std::int64_t i = 0; i < network.parameters; ++i) parameters.push_back(normal(random));
    for (int i = 0; i < count; ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random);
    data = {to_device(images), to_device(labels), count};
  }

  std::uint8_t const* image(std::int64_t i) const { return images.data() + order[i] * network.input.size(); }

  std::vector<float> rows(ShardPlan const& plan, Interval run, std::int64_t first = 0) const {
    Space const space;
    Executor executor(space, network, conv);
    Buffer<float> const out("lockstep::test::rows", run.size() * (network.parameters + 1));
    Kokkos::deep_copy(space, out, -1.0f);
    executor.gradients(space, data, to_device(order), first, plan, run, to_device(parameters), out);
    return to_host(out);
  }
};

// |value - expected| relative to the row's largest entry of the same tensor.
double worst_error(Network const& network, float const* row, std::vector<double> const& expected) {
  double worst = 0.0;
  for (Tensor const& tensor : network.tensors) {
    double largest = 1e-30, error = 0.0;
    for (auto i = tensor.offset; i < tensor.offset + tensor.count; ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      error   = std::max(error, std::isnan(row[i]) ? 1.0 : std::abs(row[i] - expected[i]));
    }
    worst = std::max(worst, error / largest);
  }
  return worst;
}

void expect_rows_near_reference(Problem const& problem, std::int64_t first, ShardPlan const& plan) {
  auto const& network = problem.network;
  auto const rows     = problem.rows(plan, {0, plan.shards}, first);
  Reference const reference{network, problem.parameters};
  for (std::int64_t s = 0; s < plan.shards; ++s) {
    std::vector<double> gradient(network.parameters, 0.0);
    double loss         = 0.0;
    Interval const mine = plan.images_of(s);
    for (auto i = mine.begin; i < mine.end; ++i)
      loss += reference.backward(problem.image(first + i), problem.labels[problem.order[first + i]], gradient);
    float const* row = rows.data() + s * (network.parameters + 1);
    EXPECT_NEAR(row[network.parameters], loss, 3e-6 * mine.size() * std::max(1.0, loss)) << "shard " << s;
    EXPECT_LT(worst_error(network, row, gradient), 2e-5) << "shard " << s << " of " << plan.shards;
  }
}

std::vector<std::pair<std::string, Network>> networks() {
  std::vector<std::pair<std::string, Network>> all;
  auto const add = [&](std::string name, Network network) { all.emplace_back(std::move(name), std::move(network)); };
  add("dense only", Network::with_input({1, 3, 5}).dense(7));
  add("dense relu dense", Network::with_input({2, 3, 4}).dense(33).relu().dense(21).dense(3));
  add("conv3 without relu or pool", Network::with_input({1, 7, 9}).conv2d(4, 3).dense(5));
  add("conv3 relu pool, odd", Network::with_input({1, 10, 9}).conv2d(7, 3).relu().average_pool2d(2).dense(5));
  add("conv5 pool, three input channels", Network::with_input({3, 12, 11}).conv2d(6, 5).average_pool2d(2).dense(4));
  add("two convs without pool", Network::with_input({1, 9, 12}).conv2d(3, 3).relu().conv2d(8, 5).relu().dense(10));
  add("conv2, conv4: other kernels",
      Network::with_input({2, 11, 10}).conv2d(5, 2).relu().average_pool2d(2).conv2d(6, 4).relu().dense(3));
  add("conv1 and pool 3",
      Network::with_input({1, 13, 14}).conv2d(11, 1).average_pool2d(3).relu().conv2d(12, 3).dense(9).relu().dense(2));
  add("relu and pool first", Network::with_input({1, 9, 9}).relu().average_pool2d(2).dense(6));
  add("wide conv5: several segments", Network::with_input({1, 8, 27}).conv2d(3, 3).relu().conv2d(4, 5).relu().dense(3));
  add("three convs", Network::with_input({1, 21, 22})
                         .conv2d(4, 3)
                         .relu()
                         .average_pool2d(2)
                         .conv2d(5, 3)
                         .relu()
                         .average_pool2d(2)
                         .conv2d(9, 3)
                         .relu()
                         .dense(6));
  return all;
}

TEST(Executor, RowsAgreeWithDoubleLoopsForAnyShapes) {
  for (auto const& [name, network] : networks()) {
    SCOPED_TRACE(name);
    Problem problem(network, 40);
    for (Conv const conv : convs()) {
      problem.conv = conv;
      SCOPED_TRACE(conv == Conv::gemm ? "gemm" : "direct");
      for (int n : {1, 3, 16, 37}) {
        SCOPED_TRACE(n);
        expect_rows_near_reference(problem, 40 - n, ShardPlan::for_batch(n));
        for (std::int64_t size : {1, 2, 4, 8, 16, 32})
          expect_rows_near_reference(problem, 0, {n, size, (n + size - 1) / size});
      }
    }
  }
}

TEST(Executor, ChapterRowsAgreeWithDoubleLoops) {
  Problem problem(Network::chapter(), 48, 0.08f);
  for (Conv const conv : convs()) {
    problem.conv = conv;
    expect_rows_near_reference(problem, 0, ShardPlan::for_batch(5));
    expect_rows_near_reference(problem, 3, {45, 32, 2});
  }
}

TEST(Executor, ShardRowsDoNotDependOnTheRunTheyAreIn) {
  Problem const problem(Network::chapter(), 700, 0.08f);
  std::int64_t const width = problem.network.parameters + 1;
  std::vector<int> sizes{96, 256, 257, 700};
  for (int n = 1; n <= 40; n += 3) sizes.push_back(n);
  for (int n : sizes) {
    ShardPlan const plan = ShardPlan::for_batch(n);
    auto const all       = problem.rows(plan, {0, plan.shards});
    for (int devices : {2, 3, 5, 16}) {
      if (devices != 3 && n > 257) continue;
      for (int device = 0; device < devices; ++device) {
        Interval const run = plan.shards_of(device, devices);
        auto const part    = problem.rows(plan, run);
        if (part.empty()) continue;  // a device without shards
        ASSERT_EQ(0, std::memcmp(part.data(), all.data() + run.begin * width, part.size() * sizeof(float)))
            << "batch " << n << ", device " << device << " of " << devices;
      }
    }
  }
}

TEST(Executor, ShardRowsByGemmDoNotDependOnTheRunTheyAreIn) {
  if (!on_host) GTEST_SKIP() << "matrix products run on host back ends only";
  Problem problem(Network::chapter(), 261, 0.08f);
  problem.conv             = Conv::gemm;
  std::int64_t const width = problem.network.parameters + 1;
  for (int n : {5, 40, 261}) {
    ShardPlan const plan = ShardPlan::for_batch(n);
    auto const all       = problem.rows(plan, {0, plan.shards});
    for (Interval const run : {Interval{0, 1}, Interval{1, plan.shards}, Interval{plan.shards - 1, plan.shards}}) {
      auto const part = problem.rows(plan, run);
      ASSERT_EQ(0, std::memcmp(part.data(), all.data() + run.begin * width, part.size() * sizeof(float)))
          << "batch " << n << ", shards " << run.begin << " to " << run.end;
    }
  }
}

TEST(Executor, AShardsRowDoesNotDependOnItsNeighboursOrItsPlace) {
  Problem problem(Network::chapter(), 64, 0.08f);
  std::int64_t const width = problem.network.parameters + 1;
  for (std::int64_t size : {1, 2, 4, 8, 16, 32}) {
    ShardPlan const plan{64, size, 64 / size};
    problem.order.resize(64);
    for (int i = 0; i < 64; ++i) problem.order[i] = i;
    auto const forward = problem.rows(plan, {0, plan.shards});
    for (int i = 0; i < 64; ++i) problem.order[i] = int((plan.shards - 1 - i / size) * size + i % size);
    auto const backward = problem.rows(plan, {0, plan.shards});
    for (std::int64_t s = 0; s < plan.shards; ++s)
      ASSERT_EQ(0, std::memcmp(forward.data() + s * width, backward.data() + (plan.shards - 1 - s) * width,
                               width * sizeof(float)))
          << "shard " << s << " of size " << size;
  }
}

TEST(Executor, AShortShardHasTheBitsOfAFullOneWithoutTheOthers) {
  // The last shard of 37 images in shards of 8 has 5; the same 5 images alone in a plan of one such shard.
  Problem const problem(Network::chapter(), 37, 0.08f);
  std::int64_t const width = problem.network.parameters + 1;
  for (std::int64_t size : {8, 16, 32}) {
    ShardPlan const plan{37, size, (37 + size - 1) / size};
    auto const all      = problem.rows(plan, {0, plan.shards});
    Interval const last = plan.images_of(plan.shards - 1);
    auto const alone    = problem.rows({last.size(), size, 1}, {0, 1}, last.begin);
    EXPECT_EQ(0, std::memcmp(alone.data(), all.data() + (plan.shards - 1) * width, width * sizeof(float))) << size;
  }
}

// In a process of its own for each number of threads: Kokkos starts once.
TEST(Executor, DISABLED_PrintsAHashOfRows) {
  Problem problem(Network::chapter(), 257, 0.08f);
  std::uint64_t hash = 1;
  for (Conv const conv : convs())
    for (int n : {5, 100, 257}) {
      problem.conv = conv;
      for (float value : problem.rows(ShardPlan::for_batch(n), {0, ShardPlan::for_batch(n).shards})) {
        std::uint32_t bits;
        std::memcpy(&bits, &value, 4);
        hash = (hash ^ bits) * 0x100000001b3u;
      }
    }
  std::printf("threads %d hash %llx\n", int(Space().concurrency()), static_cast<unsigned long long>(hash));
}

TEST(Executor, TheNumberOfThreadsChangesNoBit) {
  if (std::string(Space::name()) == "Serial") GTEST_SKIP() << "this Kokkos has the Serial back end alone: one thread";
  std::vector<std::string> hashes;
  for (int threads : {1, 2, 3, 20}) {
    std::string const command = "OMP_NUM_THREADS=" + std::to_string(threads) + " " + testing::internal::GetArgvs()[0] +
                                " --gtest_also_run_disabled_tests --gtest_filter=Executor.DISABLED_PrintsAHashOfRows";
    FILE* const pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string const start = "threads " + std::to_string(threads) + " ";
    for (char line[256]; std::fgets(line, sizeof line, pipe);)
      if (std::string(line).rfind(start, 0) == 0) hashes.push_back(line + start.size());
    EXPECT_EQ(pclose(pipe), 0);
  }
  // One thread takes whole shards; with more threads than blocks of images several share one.
  EXPECT_EQ(hashes, std::vector<std::string>(4, hashes.at(0)));
}

// Backward in segments, wherever it is cut: after each segment the entries of its layers have the whole pass's bits,
// and those of earlier layers are as they were.
TEST(Executor, SegmentsGiveTheBitsOfTheWhole) {
  if (!on_host) GTEST_SKIP() << "accelerators do the whole at once";
  auto odd = Network::with_input({1, 13, 11});
  odd.conv2d(3, 3).relu().average_pool2d(2).conv2d(5, 2).relu().dense(7).relu().dense(9).dense(10);
  auto pools = Network::with_input({1, 12, 12});
  pools.average_pool2d(2).conv2d(4, 3).average_pool2d(3).relu().dense(10);
  std::vector<std::pair<Network, std::vector<std::vector<int>>>> const cases{
      {Network::chapter(), {{0}, {6, 0}, {3, 0}, {8, 6, 3, 0}}},
      {odd, {{7, 0}, {8, 7, 5, 3, 0}, {3, 0}}},
      {pools, {{4, 0}, {4, 1, 0}}}};
  Space const space;
  for (auto const& [network, cuts] : cases) {
    Problem const problem(network, 300, 0.1f);
    std::int64_t const width = network.parameters + 1;
    auto const order         = to_device(problem.order);
    auto const parameters    = to_device(problem.parameters);
    // Shards of 1, 2, 16 and 32 images: several in a block, and several blocks each; few units are shared by workers.
    for (ShardPlan const& plan :
         {ShardPlan{5, 1, 5}, ShardPlan{37, 2, 19}, ShardPlan{300, 16, 19}, ShardPlan{77, 32, 3}, ShardPlan{40, 64, 1}})
      for (auto const& first_layers : cuts) {
        Interval const run{plan.shards > 2 ? 1 : 0, plan.shards};
        auto const expected = problem.rows(plan, run);
        Executor executor(space, network, Conv::direct, {first_layers, blocks_of(plan, run.size())});
        Buffer<float> const rows("lockstep::test::rows", run.size() * width);
        Kokkos::deep_copy(space, rows, -1.0f);
        for (std::size_t s = 0; s < first_layers.size(); ++s) {
          executor.gradients(space, problem.data, order, 0, plan, run, parameters, rows, int(s));
          std::int64_t done = s + 1 < first_layers.size() ? network.parameters : 0;
          for (std::size_t l = std::size_t(first_layers[s]); done > 0 && l < network.layers.size(); ++l)
            if (network.layers[l].weight >= 0)
              done = std::min(done, network.tensors[std::size_t(network.layers[l].weight)].offset);
          auto const found = to_host(rows);
          for (std::int64_t r = 0; r < run.size(); ++r) {
            float const* const row = found.data() + r * width;
            ASSERT_EQ(done, std::find_if(row, row + done, [](float value) { return value != -1.0f; }) - row)
                << "shard of " << plan.shard_size << ", segment " << s;
            ASSERT_EQ(0, std::memcmp(row + done, expected.data() + r * width + done,
                                     std::size_t(width - done) * sizeof(float)))
                << "shard of " << plan.shard_size << ", segment " << s << " of " << first_layers.size();
          }
        }
      }
  }
}

// One executor, one launch after another: each takes all of its own units.
TEST(Executor, ManyLaunchesGiveTheSameRows) {
  Problem const problem(Network::chapter(), 60, 0.08f);
  Space const space;
  Executor executor(space, problem.network);
  auto const parameters = to_device(problem.parameters);
  auto const order      = to_device(problem.order);
  ShardPlan const plan{60, 4, 15};
  std::vector<float> first;
  for (int launch = 0; launch < 5; ++launch) {
    Buffer<float> const out("lockstep::test::rows", plan.shards * (problem.network.parameters + 1));
    executor.gradients(space, problem.data, order, 0, plan, {0, plan.shards}, parameters, out);
    Buffer<std::int64_t> const correct("lockstep::test::correct", 1);
    executor.count_correct(space, problem.data, {0, 17 * launch % 60}, parameters, correct);
    auto const rows = to_host(out);
    if (launch == 0) first = rows;
    EXPECT_EQ(rows, first) << "launch " << launch;
  }
}

TEST(Executor, EmptyRunsAreLegal) {
  Problem const problem(Network::chapter(), 4);
  EXPECT_TRUE(problem.rows(ShardPlan::for_batch(4), {2, 2}).empty());
}

TEST(Executor, ANotFiniteParameterShowsInEveryRow) {
  for (std::int64_t at : {3L, 210L, 5000L, 120000L, 129067L}) {
    Problem problem(Network::chapter(), 20, 0.08f);
    problem.parameters[at] = std::nanf("");
    auto const rows        = problem.rows(ShardPlan::for_batch(20), {0, 20});
    for (int s = 0; s < 20; ++s)
      EXPECT_TRUE(std::isnan(rows[(s + 1) * (problem.network.parameters + 1) - 1])) << at << ", shard " << s;
  }
}

TEST(Executor, LogitsAndCountsAgreeWithDoubleLoops) {
  auto all = networks();
  all.emplace_back("chapter", Network::chapter());
  for (auto const& [name, network] : all) {
    SCOPED_TRACE(name);
    Problem const problem(network, 41, 0.08f);
    Reference const reference{network, problem.parameters};
    Space const space;
    auto const parameters = to_device(problem.parameters);
    for (Conv const conv : convs()) {
      Executor executor(space, network, conv);
      for (Interval images : {Interval{0, 41}, Interval{5, 6}, Interval{7, 39}, Interval{9, 9}}) {
        Buffer<float> const out("lockstep::test::logits", images.size() * network.classes);
        Buffer<std::int64_t> const correct("lockstep::test::correct", 1);
        executor.logits(space, problem.data, images, parameters, out);
        executor.count_correct(space, problem.data, images, parameters, correct);
        auto const logits     = to_host(out);
        std::int64_t expected = 0;
        for (auto i = images.begin; i < images.end; ++i) {
          auto const z = reference.forward(problem.images.data() + i * network.input.size()).back();
          int best     = 0;
          for (int c = 0; c < network.classes; ++c) {
            EXPECT_NEAR(logits[(i - images.begin) * network.classes + c], z[c], 2e-5 * (1.0 + std::abs(z[c])));
            if (logits[(i - images.begin) * network.classes + c] > logits[(i - images.begin) * network.classes + best])
              best = c;
          }
          expected += best == problem.labels[i];
        }
        EXPECT_EQ(to_host(correct)[0], expected);
      }
    }
  }
}

TEST(Executor, RefusesWhatDoesNotFit) {
  Problem const problem(Network::chapter(), 20);
  Space const space;
  Executor executor(space, problem.network);
  auto const parameters = to_device(problem.parameters);
  auto const order      = to_device(problem.order);
  Buffer<float> const rows("lockstep::test::rows", 2 * 129069);
  EXPECT_THROW(executor.gradients(space, problem.data, order, 0, {20, 8, 3}, {0, 3}, parameters, rows), Error);
  EXPECT_THROW(executor.gradients(space, problem.data, order, 1, {20, 8, 3}, {0, 2}, parameters, rows), Error);
  EXPECT_THROW(executor.gradients(space, problem.data, order, 0, {20, 8, 3}, {2, 4}, parameters, rows), Error);
  EXPECT_THROW(executor.logits(space, problem.data, {0, 21}, parameters, rows), Error);
  if (!on_host) return;
  // Segments: none there, between layers that are joined, rising, not to the first layer, and more blocks than kept.
  EXPECT_THROW(executor.gradients(space, problem.data, order, 0, {20, 8, 3}, {0, 2}, parameters, rows, 0), Error);
  for (auto const& wrong : std::vector<std::vector<int>>{{1, 0}, {3, 6, 0}, {6, 3}, {6, 6, 0}})
    EXPECT_THROW(Executor(space, problem.network, Conv::direct, {wrong, 1}), Error);
  Executor small(space, problem.network, Conv::direct, {{6, 0}, 1});
  EXPECT_NO_THROW(small.gradients(space, problem.data, order, 0, {20, 8, 3}, {0, 2}, parameters, rows, 0));
  EXPECT_THROW(small.gradients(space, problem.data, order, 0, {20, 2, 10}, {0, 10}, parameters,
                               Buffer<float>("lockstep::test::rows", 10 * 129069), 0),
               Error);
}

// What an accelerator's thread computes for one image has the bits of a lane of a host's vector, however many share a
// block.
TEST(Executor, AScalarPackAndSharesGiveTheSameBits) {
  Problem const problem(Network::chapter(), lanes, 0.08f);
  Plan const plan(problem.network);
  BlockRunner const block(plan, plan.stages.data(), problem.images.data(), problem.labels.data());
  std::int64_t const width = problem.network.parameters + 1;
  auto const run           = [&](auto pack, int group, int parts) {
    std::vector<float> rows(lanes / group * width), work(plan.size);
    std::vector<std::vector<float>> part_work(parts, std::vector<float>(plan.size));
    BlockRunner::Job job;
    for (int lane = 0; lane < lanes; ++lane) job.indices[lane] = lane;
    job.count = lanes - 1;
    job.rows  = GradientRows{rows.data(), width, group, lanes / group, false};
    job.work = job.scratch = work.data();
    for (int phase = 0; phase < block.phases(); ++phase)
      for (int part = parts; part-- > 0;) {
        job.conv_work = part_work[part].data();
        block.run<decltype(pack)>(phase, job, problem.parameters.data(), Share{part, parts});
      }
    return rows;
  };
  for (int group : {2, 4, 16}) {
    auto const rows = run(HostPack(), group, 1);
    EXPECT_EQ(run(ScalarPack(), group, 1), rows) << group;
    EXPECT_EQ(run(HostPack(), group, 7), rows) << group;
  }
}

// What an accelerator runs, here on the host. Its work space holds four blocks there, so that the larger shards and
// batches take several waves.
TEST(LanePass, HasTheBitsOfTheExecutor) {
  auto all = networks();
  all.emplace_back("chapter", Network::chapter());
  Space const space;
  for (auto const& [name, network] : all) {
    SCOPED_TRACE(name);
    Problem const problem(network, 101, 0.08f);
    auto const parameters    = to_device(problem.parameters);
    auto const order         = to_device(problem.order);
    std::int64_t const width = network.parameters + 1;
    LanePass const pass(space, network);
    for (std::int64_t size : {1, 2, 4, 8, 16, 32, 96}) {
      ShardPlan const plan{99, size, (99 + size - 1) / size};
      for (Interval run : {Interval{0, plan.shards}, Interval{plan.shards / 2, plan.shards}}) {
        auto const expected = problem.rows(plan, run, 2);
        Buffer<float> const rows("lockstep::test::rows", run.size() * width);
        Kokkos::deep_copy(space, rows, -1.0f);
        pass.gradients(space, lane_units(problem.data, order, 2, plan, run, width, rows), parameters.data());
        auto const found = to_host(rows);
        for (std::int64_t s = 0; s < run.size(); ++s)
          ASSERT_EQ(0, std::memcmp(found.data() + s * width, expected.data() + s * width, width * sizeof(float)))
              << "shard " << run.begin + s << " of size " << size;
      }
    }
    Executor executor(space, network);
    LaneUnits const images{problem.data.images.data(), problem.data.labels.data(), nullptr, 7, 90, lanes};
    Buffer<float> const found("lockstep::test::logits", 90 * network.classes),
        expected("lockstep::test::logits", 90 * network.classes);
    Buffer<std::int64_t> const count("lockstep::test::count", 1), expected_count("lockstep::test::count", 1);
    pass.logits(space, images, parameters.data(), found.data());
    executor.logits(space, problem.data, {7, 97}, parameters, expected);
    EXPECT_EQ(to_host(found), to_host(expected));
    pass.count_correct(space, images, parameters.data(), count.data());
    executor.count_correct(space, problem.data, {7, 97}, parameters, expected_count);
    EXPECT_EQ(to_host(count), to_host(expected_count));
  }
}

TEST(KernelTimes, CountOnlyNeededWork) {
  if (!on_host) GTEST_SKIP() << "an accelerator times a batch instead of a block a thread";
  Space const space;
  auto const times   = time_kernels(space, Network::chapter(), 1, {Conv::direct});
  double const block = 2.0 * lanes * space.concurrency();
  // Multiply-adds an image: 24 x 24 and 8 x 8 outputs of the convolutions instead of 26 x 26 and 9 x 9; backward
  // without the data gradient of the first.
  double const conv1 = 20 * 9 * 24 * 24, conv2 = 50 * 500 * 8 * 8, dense = 800 * 128 + 128 * 10;
  EXPECT_EQ(times[0].flops, block * (conv1 + conv2 + dense));
  EXPECT_EQ(times[1].flops, block * (2 * conv1 + 3 * conv2 + 3 * dense));
  for (auto const& time : times) EXPECT_GT(time.seconds, 0.0) << time.name;
}

}  // namespace
}  // namespace lockstep
