// SPDX-License-Identifier: Apache-2.0
// Every algorithm on every transport against a sum made in the test: all lengths, types, operations, in and out of
// place, buffers off by one element, guard zones.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <set>

#include "comm/choose.hpp"
#include "comm/communicator.hpp"
#include "comm/transports/messages.hpp"
#include "comm/transports/reduce.hpp"
#include "kernels/error.hpp"
#ifdef LOCKSTEP_HAVE_MPI
#include <mpi.h>
#endif

using namespace lockstep;
using namespace lockstep::comm;

#ifdef LOCKSTEP_HAVE_MPI
static bool memory_ends = false;

// In place of the library's.
extern "C" int MPI_Win_allocate_shared(MPI_Aint bytes, int unit, MPI_Info info, MPI_Comm comm, void* base,
                                       MPI_Win* window) {
  return memory_ends ? MPI_ERR_NO_MEM : PMPI_Win_allocate_shared(bytes, unit, info, comm, base, window);
}
#endif

namespace {

// Value of element i of rank r: sums of any number of ranks up to 64 are exact in every type, in any order.
template <class T>
T exact_value(int rank, std::int64_t i, int round) {
  return T(std::int64_t((std::uint64_t(i) * 2654435761u + std::uint64_t(rank) * 40503u + std::uint64_t(round) * 977u) %
                        8191) -
           4095);
}

template <class T>
T expected_value(Op op, int ranks, std::int64_t i, int round) {
  T value = exact_value<T>(0, i, round);
  for (int r = 1; r < ranks; ++r) {
    T const other = exact_value<T>(r, i, round);
    value         = op == Op::sum ? value + other : op == Op::max ? std::max(value, other) : std::min(value, other);
  }
  return value;
}

constexpr std::int64_t guard = 32;

template <class T>
T guard_value() {
  return T(-77777);
}

// A buffer of `count` elements, `offset` elements off its allocation's alignment, between guard zones.
template <class T>
struct Guarded {
  Guarded(std::int64_t count, std::int64_t offset)
      : whole("test", std::size_t(count + 2 * guard + offset)),
        inside(Kokkos::subview(whole, std::make_pair(guard + offset, guard + offset + count))) {
    auto const mirror = Kokkos::create_mirror_view(whole);
    for (std::size_t i = 0; i < mirror.extent(0); ++i) mirror(i) = guard_value<T>();
    Kokkos::deep_copy(Space(), whole, mirror);
    Space().fence();
  }

  template <class F>
  void fill(F const& value) {
    auto const mirror = Kokkos::create_mirror_view(inside);
    for (std::size_t i = 0; i < mirror.extent(0); ++i) mirror(i) = value(std::int64_t(i));
    Kokkos::deep_copy(Space(), inside, mirror);
    Space().fence();
  }

  auto host() const { return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), inside); }

  bool guards_intact() const {
    auto const mirror = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), whole);
    auto const first  = std::size_t(inside.data() - whole.data());
    for (std::size_t i = 0; i < mirror.extent(0); ++i)
      if ((i < first || i >= first + inside.extent(0)) && mirror(i) != guard_value<T>()) return false;
    return true;
  }

  Buffer<T> whole, inside;
};

template <class T>
int wrong_elements(Communicator& world, std::string const& algorithm, Op op, std::int64_t count, bool in_place,
                   std::int64_t offset, int round) {
  std::vector<Guarded<T>> inputs, outputs;
  std::vector<Buffer<T>> in, out;
  for (int d = 0; d < world.local_size(); ++d) {
    inputs.emplace_back(count, offset);
    inputs.back().fill([&](std::int64_t i) { return exact_value<T>(world.rank(d), i, round); });
    in.push_back(inputs.back().inside);
    if (in_place) continue;
    outputs.emplace_back(count, offset);
    outputs.back().fill([](std::int64_t) {
      return std::numeric_limits<T>::has_quiet_NaN ? std::numeric_limits<T>::quiet_NaN() : T(-1);
    });
    out.push_back(outputs.back().inside);
  }
  if (in_place)
    world.allreduce(algorithm, op, in);
  else
    world.allreduce(algorithm, op, in, out);
  int wrong = 0;
  for (int d = 0; d < world.local_size(); ++d) {
    auto const& result = in_place ? inputs[std::size_t(d)] : outputs[std::size_t(d)];
    auto const values  = result.host();
    for (std::int64_t i = 0; i < count; ++i)
      wrong += values(std::size_t(i)) != expected_value<T>(op, world.size(), i, round);
    wrong += !result.guards_intact();
    if (in_place) continue;
    auto const kept = inputs[std::size_t(d)].host();
    for (std::int64_t i = 0; i < count; ++i) wrong += kept(std::size_t(i)) != exact_value<T>(world.rank(d), i, round);
    wrong += !inputs[std::size_t(d)].guards_intact();
  }
  return wrong;
}

std::set<std::int64_t> lengths(int ranks) {
  std::set<std::int64_t> counts{31, 127, 255, 256, 257, 1009, 1023, 1024, 1025, 4099};
  for (std::int64_t n = 0; n <= 3 * ranks; ++n) counts.insert(n);
  return counts;
}

struct Setting {
  char const* name;
  int devices;  // per process
  CommunicatorOptions options;
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  CommunicatorOptions alone;
  alone.alone   = true;
  int processes = Communicator({Space()}).processes();
  if (processes == 1)
    for (int devices : {1, 2, 3, 4, 5, 6, 7, 8}) all.push_back({"in-process", devices, alone});
  if (processes == 1) return all;
  CommunicatorOptions messages;
  messages.transport = Transport::messages;
  CommunicatorOptions memory;
  memory.transport = Transport::shared_memory;
  all.push_back({"shared memory", 1, memory});
  if (processes <= 4) all.push_back({"shared memory, 2 devices each", 2, memory});
  CommunicatorOptions nodes = memory;
  nodes.processes_per_node  = 2;
  all.push_back({"shared memory in nodes of 2 processes", 1, nodes});
  all.push_back({"messages", 1, messages});
  if (processes <= 4) all.push_back({"messages, 2 devices each", 2, messages});
  CommunicatorOptions staged = messages;
  staged.host_staging        = true;
  staged.max_message_bytes   = 100;
  all.push_back({"messages in pieces through the host", 1, staged});
  return all;
}

template <class T>
void sweep_type(Setting const& setting, Communicator& world) {
  int round = 0, calls = 0;
  for (auto const& algorithm : world.algorithms())
    for (std::int64_t count : lengths(world.size()))
      for (Op op : {Op::sum, Op::max, Op::min}) {
        // All combinations would take long and find no more: they take turns.
        ++round;
        if (world.processes() > 3 && round / 3 % 3 != int(op)) continue;
        ++calls;
        bool const in_place       = round % 2;
        std::int64_t const offset = round / 2 % 2;
        EXPECT_EQ(wrong_elements<T>(world, algorithm, op, count, in_place, offset, round), 0)
            << setting.name << ": " << algorithm << ", " << world.size() << " ranks, " << count << " elements, op "
            << int(op) << (in_place ? ", in place" : ", out of place") << ", offset " << offset;
      }
  EXPECT_GE(calls, round / 4);
}

TEST(Allreduce, EveryAlgorithmLengthTypeAndOperation) {
  for (auto const& setting : settings()) {
    Communicator world(std::vector<Space>(std::size_t(setting.devices)), setting.options);
    sweep_type<float>(setting, world);
    sweep_type<double>(setting, world);
    sweep_type<std::int64_t>(setting, world);
  }
}

// Long enough for several pieces of everything that is cut in pieces; in memory of the communicator's and of others.
TEST(Allreduce, LongVectors) {
  for (auto setting : settings()) {
    setting.options.max_message_bytes = std::max<std::int64_t>(setting.options.max_message_bytes, 10000);
    Communicator world(std::vector<Space>(std::size_t(setting.devices)), setting.options);
    for (std::int64_t count : {70001}) {
      auto const own = world.allocate<double>("test", count + 1);
      for (auto const& algorithm : world.algorithms()) {
        EXPECT_EQ(wrong_elements<double>(world, algorithm, Op::sum, count, true, 1, 1), 0)
            << setting.name << ": " << algorithm;
        EXPECT_EQ(wrong_elements<double>(world, algorithm, Op::sum, count, false, 1, 1), 0)
            << setting.name << ": " << algorithm;
        std::vector<Buffer<double>> views;
        for (int d = 0; d < world.local_size(); ++d) {
          auto const& buffer = own[std::size_t(d)];
          for (std::int64_t i = 0; i < count; ++i)
            buffer(std::size_t(i) + 1) = exact_value<double>(world.rank(d), i, 2);
          views.push_back(Kokkos::subview(buffer, std::make_pair(std::int64_t(1), count + 1)));
        }
        world.allreduce(algorithm, Op::sum, views);
        int wrong = 0;
        for (auto const& view : views)
          for (std::int64_t i = 0; i < count; ++i)
            wrong += view(std::size_t(i)) != expected_value<double>(Op::sum, world.size(), i, 2);
        EXPECT_EQ(wrong, 0) << setting.name << ": " << algorithm << ", " << count
                            << " elements in memory of the communicator";
        world.barrier();
      }
    }
  }
}

// No barrier between calls, ranks that dawdle in turn: nobody may leave a call with what others have not finished, nor
// disturb those that are still in the last one.
TEST(Allreduce, CallAfterCall) {
  constexpr std::int64_t longest = 40001;
  for (auto setting : settings()) {
    setting.options.max_message_bytes = std::max<std::int64_t>(setting.options.max_message_bytes, 10000);
    Communicator world(std::vector<Space>(std::size_t(setting.devices)), setting.options);
    std::vector<Buffer<double>> others;  // memory that the communicator does not know
    for (int d = 0; d < setting.devices; ++d) others.emplace_back("test", longest);
    std::vector<Buffer<double>> const buffers[] = {world.allocate<double>("test", longest),
                                                   world.allocate<double>("test", longest), others};
    auto const algorithms                       = world.algorithms();
    bool const fused = std::find(algorithms.begin(), algorithms.end(), "fused") != algorithms.end();
    std::mt19937 same_on_all(1);
    for (int round = 0; round < 80; ++round) {
      auto const& whole        = buffers[same_on_all() % 3];
      std::int64_t const count = std::array<std::int64_t, 4>{0, 100, longest, longest}[same_on_all() % 4];
      std::vector<Buffer<double>> const nothing(std::size_t(world.local_size()), Buffer<double>("test", 0));
      if (same_on_all() % 2) world.allreduce("ring", Op::sum, nothing);  // waits for nobody
      auto const& algorithm =
          fused && same_on_all() % 2 ? std::string("fused") : algorithms[same_on_all() % algorithms.size()];
      std::vector<Buffer<double>> views;
      for (int d = 0; d < world.local_size(); ++d) {
        views.push_back(Kokkos::subview(whole[std::size_t(d)], std::make_pair(std::int64_t(0), count)));
        for (std::int64_t i = 0; i < count; ++i) views.back()(i) = exact_value<double>(world.rank(d), i, round);
      }
      if ((round + world.rank(0)) % 4 == 0) usleep(200);
      world.allreduce(algorithm, Op::sum, views);
      int wrong = 0;
      for (auto const& view : views)  // the end first: others may still be at it
        for (std::int64_t i = count; i-- > 0;)
          wrong += view(i) != expected_value<double>(Op::sum, world.size(), i, round);
      ASSERT_EQ(wrong, 0) << setting.name << ": " << algorithm << ", " << count << " elements, round " << round;
    }
  }
}

TEST(Allreduce, BroadcastCopiesRankZero) {
  for (auto const& setting : settings()) {
    Communicator world(std::vector<Space>(std::size_t(setting.devices)), setting.options);
    for (std::int64_t count : {0, 1, 7, 1000}) {
      std::vector<Guarded<float>> buffers;
      std::vector<Buffer<float>> views;
      for (int d = 0; d < world.local_size(); ++d) {
        buffers.emplace_back(count, 1);
        buffers.back().fill([&](std::int64_t i) { return exact_value<float>(world.rank(d), i, 5); });
        views.push_back(buffers.back().inside);
      }
      world.broadcast(views);
      for (auto const& buffer : buffers) {
        auto const values = buffer.host();
        for (std::int64_t i = 0; i < count; ++i)
          EXPECT_EQ(values(std::size_t(i)), exact_value<float>(0, i, 5)) << setting.name;
        EXPECT_TRUE(buffer.guards_intact());
      }
    }
  }
}

// A broadcast and the probes' exchange are schedules, too, but no sums.
TEST(Allreduce, TakesNoNamesButThoseOfAllreduces) {
  for (auto const& setting : settings()) {
    Communicator world(std::vector<Space>(std::size_t(setting.devices)), setting.options);
    for (char const* name : {"broadcast", "exchange", ""}) {
      EXPECT_THROW(wrong_elements<float>(world, name, Op::sum, 10, true, 0, 1), Error) << name;
      EXPECT_THROW(world.prepare<float>(name, Op::sum, 10), Error) << name;
    }
  }
}

#ifdef LOCKSTEP_HAVE_MPI
// After more memory was asked for than there is, calls that were prepared before go on.
TEST(Allreduce, GoesOnWhereMemoryEnds) {
  for (auto const& setting : settings()) {
    Communicator world(std::vector<Space>(std::size_t(setting.devices)), setting.options);
    if (world.transport() != "shared memory") continue;
    EXPECT_EQ(wrong_elements<float>(world, "ring", Op::sum, 100, true, 0, 1), 0);
    memory_ends = true;
    EXPECT_THROW(world.prepare<float>("ring", Op::sum, 4000000), Error);
    memory_ends = false;
    EXPECT_EQ(wrong_elements<float>(world, "ring", Op::sum, 100, true, 0, 1), 0);
  }
}
#endif

// Up to 8 KiB in shared memory every process reads all vectors; beyond, ranks share the work.
TEST(Allreduce, TrafficOfTheOnePass) {
  for (auto const& setting : settings()) {
    Communicator world(std::vector<Space>(std::size_t(setting.devices)), setting.options);
    if (world.transport() != "shared memory") continue;
    std::int64_t const others = world.size() - 1, local = world.local_size();
    for (std::int64_t const count : {1200, 1200 * world.processes()}) {
      bool const inlined   = count * 4 <= 8192;
      Traffic const before = world.traffic();
      EXPECT_EQ(wrong_elements<float>(world, "fused", Op::sum, count, true, 0, 1), 0);
      Traffic const after      = world.traffic();
      std::int64_t const share = inlined ? 4 * count : 4 * count / world.processes();
      EXPECT_EQ(after.bytes_sent - before.bytes_sent, (inlined ? local : 2) * others * share) << count;
      EXPECT_EQ(after.messages_sent - before.messages_sent, (inlined ? 1 : 2) * others * local) << count;
      EXPECT_EQ(after.bytes_reduced - before.bytes_reduced, others * share) << count;
    }
  }
}

TEST(Allreduce, AutoFollowsItsTable) {
  for (auto const& setting : settings()) {
    Communicator world(std::vector<Space>(std::size_t(setting.devices)), setting.options);
    EXPECT_THROW(wrong_elements<float>(world, "auto", Op::sum, 10, true, 0, 1), Error);
    EXPECT_THROW(world.set_choices({{100, "carrier pigeon"}}), Error);
    auto const table = measure_choices(world, 40000, 1);
    world.set_choices(table);
    for (std::int64_t count : {0, 1, 100, 5000, 20000})
      EXPECT_EQ(wrong_elements<float>(world, "auto", Op::sum, count, true, 0, 1), 0) << setting.name << ", " << count;
    // Messages sent tell the algorithms apart.
    world.set_choices({{400, "naive"}, {4000, "ring"}});
    auto const messages = [&](char const* algorithm, std::int64_t count) {
      auto const before = world.traffic().messages_sent;
      EXPECT_EQ(wrong_elements<float>(world, algorithm, Op::sum, count, true, 0, 1), 0);
      return world.traffic().messages_sent - before;
    };
    for (std::int64_t count : {100, 101, 5000})
      EXPECT_EQ(messages("auto", count), messages(count <= 100 ? "naive" : "ring", count));
  }
}

TEST(Allreduce, TablesAreReadAsWritten) {
  std::string const path = "allreduce_table_" + std::to_string(getpid()) + ".txt";
  std::ofstream(path) << as_text(std::vector<Choice>{{64, "fused"}, {4096, "tree"}});
  auto const table = read_choices(path);
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[1].bytes, 4096);
  EXPECT_EQ(table[1].algorithm, "tree");
  for (char const* bad : {"", "64\n", "64 tree\n64 ring\n", "x tree\n", "64 tree now\n"}) {
    std::ofstream(path) << bad;
    EXPECT_THROW(read_choices(path), Error) << bad;
  }
  std::remove(path.c_str());
  EXPECT_THROW(read_choices(path), Error);
}

// What asks an MPI that claims to read device memory whether it does: on host memory, which every MPI reads.
TEST(Allreduce, ProbeMessageArrives) {
  if (!runs_on_host) GTEST_SKIP() << "only MPI knows whether it reads device memory";
  World world(CommunicatorOptions(), 1);
  EXPECT_TRUE(probe_message(world, Space()));
}

// NaN, infinities and signed zeros: the documented rule, whatever the order of ranks.
TEST(Allreduce, SpecialValues) {
  float const inf = std::numeric_limits<float>::infinity(), nan = std::nanf("0x123");
  std::vector<float> const values{1.0f, nan, inf, -inf, 0.0f, -0.0f};
  auto const n = std::int64_t(values.size());
  for (auto const& setting : settings()) {
    Communicator world(std::vector<Space>(std::size_t(setting.devices)), setting.options);
    if (world.size() < 2) continue;
    // Element i * n + j: value i on rank 0, j on the last rank; on others value j for max and min, -0 for sums.
    for (Op op : {Op::sum, Op::max, Op::min})
      for (auto const& algorithm : world.algorithms()) {
        if (algorithm == "mpi" || algorithm == "nccl") continue;
        std::vector<Guarded<float>> buffers;
        std::vector<Buffer<float>> views;
        for (int d = 0; d < world.local_size(); ++d) {
          int const rank = world.rank(d);
          buffers.emplace_back(n * n, 0);
          buffers.back().fill([&](std::int64_t e) {
            if (rank == 0) return values[std::size_t(e / n)];
            return rank == world.size() - 1 || op != Op::sum ? values[std::size_t(e % n)] : -0.0f;
          });
          views.push_back(buffers.back().inside);
        }
        world.allreduce(algorithm, op, views);
        for (auto const& buffer : buffers) {
          auto const result = buffer.host();
          for (std::int64_t e = 0; e < n * n; ++e) {
            float const a = values[std::size_t(e / n)], b = values[std::size_t(e % n)];
            float expected = a + b;
            if (op != Op::sum && a == b)
              expected = (op == Op::max) == !std::signbit(a) || std::signbit(a) == std::signbit(b) ? a : b;
            if (op != Op::sum && a != b) expected = (op == Op::max) == (a > b) ? a : b;
            if (std::isnan(a) || std::isnan(b) || std::isnan(expected))
              expected = std::numeric_limits<float>::quiet_NaN();
            float const found = result(std::size_t(e));
            EXPECT_EQ(std::memcmp(&found, &expected, 4), 0) << setting.name << ": " << algorithm << " op " << int(op)
                                                            << ": " << a << ", " << b << " give " << found;
          }
        }
      }
  }
}

}  // namespace
