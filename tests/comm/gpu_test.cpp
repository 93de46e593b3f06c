// SPDX-License-Identifier: Apache-2.0
// What Lockstep does with GPUs, NCCL and device-aware MPI, checked without any, against a recorded fake (fake_gpu.hpp)
// and tables. That real libraries do what the fake does is not tested here.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include "comm/algorithms.hpp"
#include "comm/communicator.hpp"
#include "comm/transports/choice.hpp"
#include "kernels/error.hpp"
#include "tests/comm/fake_gpu.hpp"
#include "tests/test_runtime.hpp"

using namespace lockstep;
using namespace lockstep::comm;

namespace {

std::vector<int> one_each(int count) {
  std::vector<int> gpus;
  for (int g = 0; g < count; ++g) gpus.push_back(g);
  return gpus;
}

std::string message_of(std::function<void()> const& f, ExitCode expected) {
  try {
    f();
  } catch (Error const& error) {
    EXPECT_EQ(int(error.code()), int(expected)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(DeviceMapping, ProcessesDivideTheGpusOfTheirNode) {
  struct Row {
    int gpus, rank, processes, devices;
    bool several;
    std::vector<int> expected;
  };
  Row const rows[] = {
      {1, 0, 1, 1, true, {0}},
      {1, 0, 1, 8, true, {0, 0, 0, 0, 0, 0, 0, 0}},
      {8, 0, 1, 8, true, {0, 1, 2, 3, 4, 5, 6, 7}},
      {8, 0, 1, 3, true, {0, 1, 2}},
      {4, 0, 1, 6, true, {0, 1, 2, 3, 0, 1}},
      {4, 0, 1, 3, false, {0, 0, 0}},  // older Kokkos: one GPU a process
      {4, 0, 4, 1, true, {0}},
      {4, 3, 4, 1, true, {3}},
      {4, 2, 4, 1, false, {2}},
      {8, 1, 2, 4, true, {4, 5, 6, 7}},
      {8, 1, 2, 2, true, {4, 5}},
      {8, 1, 2, 2, false, {4, 4}},
      {3, 0, 2, 2, true, {0, 1}},
      {3, 1, 2, 2, true, {2, 2}},
      {2, 0, 4, 1, true, {0}},
      {2, 1, 4, 1, true, {1}},
      {2, 2, 4, 1, true, {0}},
      {2, 3, 4, 2, true, {1, 1}},
      {1, 5, 8, 1, true, {0}},  // a scheduler that shows each process its own GPU alone
  };
  for (auto const& row : rows)
    EXPECT_EQ(map_devices(row.gpus, row.rank, row.processes, row.devices, row.several), row.expected)
        << row.gpus << " GPUs, process " << row.rank << " of " << row.processes << ", " << row.devices << " devices";
  // No GPU is left idle, and none has two processes, where there are enough of them.
  for (int gpus = 1; gpus <= 8; ++gpus)
    for (int processes = 1; processes <= gpus; ++processes) {
      std::vector<int> uses(std::size_t(gpus), 0);
      for (int p = 0; p < processes; ++p)
        for (int const gpu : map_devices(gpus, p, processes, gpus, true)) uses[std::size_t(gpu)] |= 1 << p;
      for (int const use : uses) EXPECT_TRUE(use != 0 && (use & (use - 1)) == 0) << gpus << " " << processes;
    }
}

TEST(FakeDeviceRuntime, OneLineAndExitCode3WithoutAGpu) {
  FakeGpus fake;
  fake.gpu_count = 0;
  EXPECT_EQ(message_of([&] { DeviceRuntime runtime(fake); }, ExitCode::timeout),
            "found no GPU (fake); this program was built for one: expected at least one that this process may use");
  fake.failures["count"] = 35;
  EXPECT_NE(message_of([&] { DeviceRuntime runtime(fake); }, ExitCode::timeout).find("found no GPU (fake error 35)"),
            std::string::npos);
}

TEST(FakeDeviceRuntime, StreamsAreMadeOnTheirGpusOnceAndEndWithIt) {
  FakeGpus fake;
  fake.gpu_count = 2;
  {
    DeviceRuntime runtime(fake);
    ASSERT_EQ(runtime.gpus().size(), 2u);
    EXPECT_EQ(runtime.gpus()[1].bus, "bus 1");
    auto const three = runtime.streams({0, 1, 0});
    EXPECT_EQ(fake.log, (std::vector<std::string>{"create s0 on GPU 0", "create s1 on GPU 1", "create s2 on GPU 0"}));
    EXPECT_EQ(std::set<Stream>(three.begin(), three.end()).size(), 3u);
    EXPECT_EQ(runtime.streams({0, 1}), (std::vector<Stream>{three[0], three[1]}));
    EXPECT_EQ(fake.open_streams, 3);
    fake.failures["create_stream"] = 2;
    EXPECT_EQ(message_of([&] { runtime.streams({1, 1}); }, ExitCode::environment), "creating a stream: fake error 2");
  }
  EXPECT_EQ(fake.open_streams, 1);  // the one whose making failed
}

TEST(FakeDeviceRuntime, PeerAccessIsEnabledBothWaysOrNotAtAll) {
  FakeGpus fake;
  EXPECT_TRUE(enable_peer_access(fake, {2, 0, 2}));
  EXPECT_EQ(fake.log, (std::vector<std::string>{"access GPU 0 to 2", "access GPU 2 to 0"}));
  fake.log.clear();
  EXPECT_TRUE(enable_peer_access(fake, {3, 3, 3}));
  fake.peers = false;
  EXPECT_TRUE(enable_peer_access(fake, {3}));
  EXPECT_FALSE(enable_peer_access(fake, {0, 1}));
  EXPECT_TRUE(fake.log.empty());
}

struct FakeStreams {
  explicit FakeStreams(int count) : setup(fake.setup(one_each(count))) { fake.log.clear(); }
  FakeGpus fake;
  DeviceSetup setup;
};

TEST(FakeStreamOrder, AfterAJoinEverythingComesBehindEverything) {
  constexpr int count = 4;
  for (unsigned seed = 0; seed < 50; ++seed) {
    FakeStreams streams(count);
    {
      StreamOrder order(streams.fake, streams.setup.gpus, streams.setup.streams);
      int one = 1, before[count] = {}, after[count][count] = {}, last[count][count] = {};
      auto const& copy = streams.setup.copy;
      for (int s = 0; s < count; ++s) copy(s, &before[s], &one, sizeof one);
      order.join();
      for (int s = 0; s < count; ++s) copy(s, after[s], before, sizeof before);
      order.gather();
      copy(0, last, after, sizeof after);
      ASSERT_TRUE(streams.fake.execute(seed));
      for (auto const& row : last)
        for (int const value : row) ASSERT_EQ(value, 1) << seed;
    }
    EXPECT_EQ(streams.fake.live_events, 0);
  }
  FakeStreams single(1);
  StreamOrder(single.fake, {0}, single.setup.streams).join();
  EXPECT_TRUE(single.fake.log.empty());
}

TEST(FakeDeviceGraph, IsCapturedOnceLaunchedOftenAndGoneBeforeItsStreams) {
  FakeGpus fake;
  fake.run_at_once = true;
  int runs         = 0;
  {
    DeviceRuntime runtime(fake);
    auto const streams = runtime.streams({0, 1});
    fake.log.clear();
    DeviceGraph graph(fake, {0, 1}, streams);
    EXPECT_FALSE(graph.captured());
    graph.capture([&runs] { ++runs; });
    EXPECT_TRUE(graph.captured());
    EXPECT_EQ(runs, 0);
    graph.launch();
    graph.launch();
    EXPECT_EQ(runs, 2);
  }
  EXPECT_EQ(fake.log, (std::vector<std::string>{"s0: begin capture", "s1: wait for s0", "s0: wait for s1",
                                                "s0: end capture", "instantiate", "destroy graph",   //
                                                "s0: wait for s1", "s0: launch", "s1: wait for s0",  //
                                                "s0: wait for s1", "s0: launch", "s1: wait for s0",  //
                                                "destroy program", "destroy s0", "destroy s1"}));
  EXPECT_EQ(fake.live_events, 0);
}

TEST(FakeDeviceGraph, RunsBetweenWhatAllStreamsAreGivenBeforeAndAfter) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    FakeStreams streams(3);
    DeviceGraph graph(streams.fake, streams.setup.gpus, streams.setup.streams);
    int one = 1, before[3] = {}, inside = 0, after[3] = {};
    graph.capture([&] { inside += before[0] + before[1] + before[2]; });
    int start[3][9] = {};  // the last stream has the most to do before
    for (int s = 0; s < 3; ++s) {
      for (int i = 0; i < 4 * s; ++i) streams.setup.copy(s, &start[s][i + 1], &start[s][i], sizeof one);
      streams.setup.copy(s, &before[s], &one, sizeof one);
    }
    graph.launch();
    for (int s = 0; s < 3; ++s) streams.setup.copy(s, &after[s], &inside, sizeof inside);
    ASSERT_TRUE(streams.fake.execute(seed));
    for (int const value : after) ASSERT_EQ(value, 3) << seed;
  }
}

TEST(FakeDeviceGraph, WhatCannotBeCapturedIsOneLineAndLeavesTheStreamsFree) {
  std::map<std::string, std::string> const words = {
      {"begin_capture", "beginning a capture: fake error 7"},  {"end_capture", "(ending a capture: fake error 7)"},
      {"instantiate", "(making a graph ready: fake error 7)"}, {"record", "(recording an event: fake error 7)"},
      {"wait", "(waiting for an event: fake error 7)"},        {"", "(a kernel that cannot be captured)"}};
  for (auto const& entry : words) {
    std::string const& call = entry.first;
    FakeStreams streams(2);
    {
      DeviceGraph graph(streams.fake, streams.setup.gpus, streams.setup.streams);
      if (call.empty())
        streams.fake.capture_throws = true;
      else
        streams.fake.failures[call] = 7;
      std::string const line = message_of([&] { graph.capture([] {}); }, ExitCode::environment);
      EXPECT_NE(line.find(entry.second), std::string::npos) << line;
      EXPECT_EQ(line.find('\n'), std::string::npos);
      EXPECT_FALSE(graph.captured());
      EXPECT_EQ(streams.fake.capturing_streams(), 0) << call;
      EXPECT_EQ(streams.fake.live_graphs, 0) << call;
      // Nothing is in the way of a second try.
      streams.fake.failures.clear();
      streams.fake.capture_throws = false;
      graph.capture([] {});
      streams.fake.failures["launch"] = 7;
      EXPECT_EQ(message_of([&] { graph.launch(); }, ExitCode::environment), "launching a graph: fake error 7");
    }
    EXPECT_EQ(streams.fake.live_programs, 0) << call;
    EXPECT_EQ(streams.fake.live_events, 0) << call;
  }
}

TEST(TransportChoice, FollowsItsTable) {
  struct Row {
    Transport asked;
    int processes, ranks;
    bool peers;
    char const* missing;
    bool nccl, schedules, direct;
    char const* note;
  };
  constexpr auto automatic = Transport::automatic, wanted = Transport::nccl, messages = Transport::messages;
  Row const rows[] = {
      {automatic, 1, 1, true, "", false, false, true, ""},
      {automatic, 1, 4, true, "", true, false, true, ""},  // the baseline alone
      {automatic, 1, 4, false, "", true, true, false, ""},
      {automatic, 4, 4, true, "", true, true, true, ""},
      {messages, 4, 4, true, "", true, false, true, ""},
      {wanted, 1, 4, true, "", true, true, true, ""},
      {wanted, 1, 4, true, "shared", false, false, true, "without NCCL: shared"},
      {automatic, 1, 4, true, "shared", false, false, true, ""},
      {automatic, 2, 2, true, "shared", false, false, true, "without NCCL: shared"},
      {automatic, 1, 2, false, "shared", false, false, false,
       "without NCCL: shared; copies between GPUs, which cannot read each other's memory"},
      {messages, 2, 4, false, "", true, false, false, "copies between GPUs, which cannot read each other's memory"},
  };
  for (auto const& row : rows) {
    TransportFacts facts;
    facts.asked        = row.asked;
    facts.processes    = row.processes;
    facts.ranks        = row.ranks;
    facts.on_gpus      = true;
    facts.peers        = row.peers;
    facts.nccl_missing = row.missing;
    auto const choice  = choose_transport(facts);
    auto const where   = testing::Message() << int(row.asked) << " " << row.processes << " " << row.ranks;
    EXPECT_EQ(choice.nccl, row.nccl) << where;
    EXPECT_EQ(choice.schedules, row.schedules) << where;
    EXPECT_EQ(choice.direct, row.direct) << where;
    EXPECT_EQ(choice.note, row.note) << where;
  }
  TransportFacts host;
  host.ranks = 4;
  EXPECT_FALSE(choose_transport(host).nccl);
  host.asked = Transport::nccl;
  message_of([&] { choose_transport(host); }, ExitCode::usage);
}

TEST(NcclObstacle, NamesTheRanksThatShareAGpu) {
  EXPECT_EQ(nccl_obstacle({"a on x", "b on x", "a on y"}, false), "");
  EXPECT_EQ(
      nccl_obstacle({"a on x", "b on x", "a on x"}, false),
      "ranks 0 and 2 share the GPU a on x, which NCCL refuses (from 2.30 NCCL_MULTI_RANK_GPU_ENABLE=1 permits it)");
  EXPECT_EQ(nccl_obstacle({"a on x", "a on x"}, true), "");
  EXPECT_EQ(nccl_obstacle({"a on x", ""}, false), "rank 1 is not on a GPU");
  EXPECT_EQ(nccl_version_text(22203), "2.22.3");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

TEST(StagingChoice, FollowsItsTable) {
  struct Row {
    bool on_host, asked;
    Claim library;
    char const* promise;
    bool probed, arrived, through_host;
  };
  Row const rows[] = {
      {true, false, Claim::says_nothing, nullptr, false, false, false},
      {true, true, Claim::says_nothing, nullptr, false, false, true},
      {false, true, Claim::reads_devices, nullptr, false, false, true},
      {false, false, Claim::says_nothing, nullptr, false, false, true},
      {false, false, Claim::does_not, nullptr, false, false, true},
      {false, false, Claim::does_not, "MV2_USE_CUDA", false, false, true},
      {false, false, Claim::reads_devices, nullptr, true, false, true},
      {false, false, Claim::reads_devices, nullptr, true, true, false},
      {false, false, Claim::says_nothing, "MV2_USE_CUDA", true, true, false},
      {false, false, Claim::says_nothing, "MV2_USE_CUDA", true, false, true},
  };
  std::set<std::string> notes;
  for (auto const& row : rows) {
    StagingFacts const facts{row.on_host, row.asked, row.library, row.promise};
    EXPECT_EQ(worth_probing(facts), row.probed);
    auto const staging = choose_staging(facts, row.arrived);
    EXPECT_EQ(staging.through_host, row.through_host) << staging.note;
    EXPECT_EQ(staging.note.empty(), row.on_host && !row.asked);
    notes.insert(staging.note);
  }
  EXPECT_EQ(notes.size(), 8u);  // each says its own reason
}

// Several processes of `local` devices each, played by one.
struct FakeJob {
  FakeJob(int process_count, int local_count, std::chrono::nanoseconds deadline = std::chrono::hours(1))
      : processes(process_count), local(local_count) {
    for (int p = 0; p < processes; ++p) {
      std::vector<int> gpus;
      for (int d = 0; d < local; ++d) gpus.push_back(p * local + d);
      Nccl::Job job;
      job.process   = p;
      job.processes = processes;
      job.broadcast = [this](NcclId& given) {
        if (given.bytes[0]) id = given;
        given = id;
      };
      job.complaint = [deadline](std::int64_t waited) {
        return waited > deadline.count() ? std::string("deadline passed") : std::string();
      };
      job.end = [this](std::string const& message) {
        std::lock_guard<std::mutex> const lock(mutex);
        ends.push_back(message);
      };
      job.blocking = [] { return nullptr; };
      members.push_back(
          std::make_unique<Nccl>(fake.setup(gpus), std::vector<Space>(std::size_t(local)), std::move(job)));
    }
  }

  // Runs f(member, inputs, outputs) on every process.
  template <class F>
  void each(std::vector<char*> const& inputs, std::vector<char*> const& outputs, F const& f) {
    for (int p = 0; p < processes; ++p) {
      auto const part = [&](std::vector<char*> const& all) {
        return std::vector<char*>(all.begin() + p * local, all.begin() + (p + 1) * local);
      };
      f(*members[std::size_t(p)], part(inputs), part(outputs));
    }
  }

  std::vector<std::string> ended() {
    std::lock_guard<std::mutex> const lock(mutex);
    return ends;
  }
  std::vector<std::string> wait_for_end() {
    for (int i = 0; i < 500 && ended().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return ended();
  }

  int processes, local;
  FakeGpus fake;
  NcclId id = {};
  std::mutex mutex;
  std::vector<std::string> ends;
  std::vector<std::unique_ptr<Nccl>> members;
};

template <class T>
T value_at(int rank, std::int64_t i) {
  return T(std::int64_t((std::uint64_t(i) * 2654435761u + std::uint64_t(rank) * 40503u) % 8191) - 4095);
}

// Wrong elements of all ranks' results; algorithm "nccl" is ncclAllReduce.
template <class T>
int wrong(FakeJob& job, std::string const& algorithm, Op op, std::int64_t count, bool in_place, unsigned seed) {
  int const ranks = job.processes * job.local;
  std::vector<std::vector<T>> in, out;
  std::vector<char*> inputs, outputs;
  constexpr std::size_t guard = 8;
  auto const pointer          = [](std::vector<T>& v) { return reinterpret_cast<char*>(v.data() + guard); };
  for (int r = 0; r < ranks; ++r) {
    in.emplace_back(std::size_t(count) + 2 * guard, T(-7));
    for (std::int64_t i = 0; i < count; ++i) in.back()[guard + std::size_t(i)] = value_at<T>(r, i);
    out.emplace_back(std::size_t(count) + 2 * guard, T(-7));
  }
  for (int r = 0; r < ranks; ++r) {
    inputs.push_back(pointer(in[std::size_t(r)]));
    outputs.push_back(in_place ? inputs.back() : pointer(out[std::size_t(r)]));
  }
  auto const kept = in;
  Type const type = type_of<T>;
  std::vector<Nccl::SchedulePlan> plans;  // live until the streams have run
  if (algorithm == "nccl") {
    job.each(inputs, outputs,
             [&](Nccl& nccl, auto const& from, auto const& to) { nccl.allreduce(type, op, count, from, to); });
  } else {
    auto const schedule = make_schedule(algorithm, {ranks, count, job.local});
    job.each(inputs, outputs, [&](Nccl& nccl, auto const& from, auto const& to) {
      plans.push_back(nccl.plan(schedule, count, type));
      nccl.run(plans.back(), type, op, count, from, to);
    });
  }
  EXPECT_TRUE(job.fake.execute(seed)) << algorithm << " on " << ranks << " ranks waits for ever";
  int found         = 0;
  auto const& saved = in_place ? in : out;
  for (auto const& result : saved)
    for (std::size_t i = 0; i < result.size(); ++i) {
      T expected = T(-7);
      if (i >= guard && i < guard + std::size_t(count)) {
        auto const at = std::int64_t(i - guard);
        expected      = value_at<T>(0, at);
        for (int r = 1; r < ranks; ++r) {
          T const other = value_at<T>(r, at);
          expected      = op == Op::sum   ? expected + other
                          : op == Op::max ? std::max(expected, other)
                                          : std::min(expected, other);
        }
      }
      found += result[i] != expected;
    }
  return found + (!in_place && in != kept);
}

TEST(FakeNccl, EveryAlgorithmOnEveryNumberOfRanks) {
  unsigned seed = 0;
  for (auto const& [processes, local] : std::vector<std::pair<int, int>>{{1, 1},
                                                                         {1, 2},
                                                                         {1, 3},
                                                                         {1, 4},
                                                                         {1, 5},
                                                                         {1, 6},
                                                                         {1, 7},
                                                                         {1, 8},
                                                                         {2, 1},
                                                                         {3, 1},
                                                                         {2, 2},
                                                                         {2, 3},
                                                                         {4, 2},
                                                                         {8, 1}}) {
    FakeJob job(processes, local);
    int const ranks = processes * local;
    auto names      = algorithm_names();
    names.emplace_back("nccl");
    for (auto const& algorithm : names)
      for (std::int64_t const count : {0, 1, ranks - 1, ranks, ranks + 1, 3 * ranks + 2, 257, 4099})
        for (Op const op : {Op::sum, Op::max, Op::min}) {
          ++seed;
          bool const in_place = seed % 2;
          int const bad       = seed % 3 == 0   ? wrong<float>(job, algorithm, op, count, in_place, seed)
                                : seed % 3 == 1 ? wrong<double>(job, algorithm, op, count, in_place, seed)
                                                : wrong<std::int64_t>(job, algorithm, op, count, in_place, seed);
          EXPECT_EQ(bad, 0) << algorithm << ", " << processes << " x " << local << " ranks, " << count
                            << " elements, op " << int(op) << ", seed " << seed;
        }
    EXPECT_TRUE(job.ended().empty());
  }
}

// Calls follow each other without the host waiting in between.
TEST(FakeNccl, CallsQueueUpWithoutTheHostWaiting) {
  FakeJob job(1, 4);
  constexpr int count = 37;
  std::vector<std::vector<double>> data;
  std::vector<char*> places;
  for (int r = 0; r < 4; ++r) data.emplace_back(std::size_t(count), double(r + 1));
  for (auto& vector : data) places.push_back(reinterpret_cast<char*>(vector.data()));
  auto const schedule = make_schedule("ring", {4, count, 4});
  auto const plan     = job.members[0]->plan(schedule, count, Type::float64);
  for (int call = 0; call < 5; ++call) job.members[0]->run(plan, Type::float64, Op::sum, count, places, places);
  EXPECT_EQ(data[2][0], 3);  // nothing has run yet
  ASSERT_TRUE(job.fake.execute(1));
  for (auto const& vector : data)
    for (double const value : vector) EXPECT_EQ(value, 10.0 * 4 * 4 * 4 * 4);
}

TEST(FakeNccl, RecordsTheSequenceOfCalls) {
  {
    FakeJob job(1, 2);
    job.fake.log.clear();
    EXPECT_EQ(wrong<float>(job, "ring", Op::sum, 5, true, 1), 0);
    EXPECT_EQ(job.fake.log,
              (std::vector<std::string>{"ncclGroupStart", "s0: ncclSend rank 0 to 1, 3 float",
                                        "s0: ncclRecv rank 0 from 1, 2 float", "s1: ncclSend rank 1 to 0, 2 float",
                                        "s1: ncclRecv rank 1 from 0, 3 float", "ncclGroupEnd", "s0: reduce 2",
                                        "s1: reduce 3", "ncclGroupStart", "s0: ncclSend rank 0 to 1, 2 float",
                                        "s0: ncclRecv rank 0 from 1, 3 float", "s1: ncclSend rank 1 to 0, 3 float",
                                        "s1: ncclRecv rank 1 from 0, 2 float", "ncclGroupEnd"}));
    job.fake.log.clear();
    EXPECT_EQ(wrong<std::int64_t>(job, "nccl", Op::max, 5, false, 1), 0);
    EXPECT_EQ(job.fake.log, (std::vector<std::string>{"ncclGroupStart", "s0: ncclAllReduce rank 0 max 0, 5 int64",
                                                      "s1: ncclAllReduce rank 1 max 1, 5 int64", "ncclGroupEnd"}));
    job.fake.log.clear();
    job.members.clear();
    EXPECT_EQ(job.fake.log, (std::vector<std::string>{"ncclCommDestroy 0", "ncclCommDestroy 1"}));
  }
  FakeJob job(2, 2);
  std::vector<std::string> starts;
  for (auto const& line : job.fake.log)
    if (line.find("nccl") == 0) starts.push_back(line);
  EXPECT_EQ(starts,
            (std::vector<std::string>{"ncclGetUniqueId", "ncclGroupStart", "ncclCommInitRank 0 of 4 on GPU 0, the id",
                                      "ncclCommInitRank 1 of 4 on GPU 1, the id", "ncclGroupEnd", "ncclGroupStart",
                                      "ncclCommInitRank 2 of 4 on GPU 2, the id",
                                      "ncclCommInitRank 3 of 4 on GPU 3, the id", "ncclGroupEnd"}));
}

TEST(FakeNccl, EveryFailedCallIsReported) {
  for (char const* call : {"ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd", "record"}) {
    FakeJob job(1, 3);
    job.fake.failures[call] = 5;
    std::string const text = message_of([&] { wrong<float>(job, "ring", Op::sum, 9, true, 1); }, ExitCode::environment);
    EXPECT_NE(text.find("fake error 5"), std::string::npos) << call << ": " << text;
    EXPECT_NE(text.find(std::string(call) == "record" ? "recording an event" : call), std::string::npos) << text;
  }
  FakeJob job(1, 2);
  job.fake.failures["ncclAllReduce"] = 4;
  EXPECT_EQ(message_of([&] { wrong<float>(job, "nccl", Op::sum, 9, true, 1); }, ExitCode::environment),
            "rank 0: ncclAllReduce: fake error 4");
}

TEST(FakeNccl, WithoutAnIdNobodyWaits) {
  FakeGpus fake;
  fake.failures["ncclGetUniqueId"] = 3;
  NcclId id                        = {};
  for (int p = 0; p < 2; ++p) {
    Nccl::Job job;
    job.process   = p;
    job.processes = 2;
    job.broadcast = [&](NcclId& given) { p == 0 ? id = given : given = id; };
    job.blocking  = [] { return nullptr; };
    std::string const text =
        message_of([&] { Nccl nccl(fake.setup({p}), {Space()}, std::move(job)); }, ExitCode::environment);
    EXPECT_EQ(text, p == 0 ? "rank 0: ncclGetUniqueId: fake error 3" : "rank 0 has no NCCL id for the others");
  }
}

TEST(FakeNccl, AsynchronousErrorsAbortAllAndEndTheJob) {
  FakeJob job(1, 3);
  job.fake.async_errors[2] = 6;
  EXPECT_EQ(job.wait_for_end(), std::vector<std::string>{"rank 2: ncclCommGetAsyncError: fake error 6"});
  EXPECT_EQ(job.fake.live_comms, 0);
  job.members.clear();  // does not destroy what was aborted
  EXPECT_EQ(job.fake.live_comms, 0);
}

TEST(FakeNccl, ACallThatNeverEndsPassesTheDeadline) {
  FakeJob job(1, 2, std::chrono::milliseconds(300));
  EXPECT_EQ(wrong<float>(job, "ring", Op::sum, 9, true, 1), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_TRUE(job.ended().empty());  // what has ended is not late
  // A second call that hangs, behind one that ends.
  std::vector<float> a(4, 1), b(4, 2);
  std::vector<char*> const places{reinterpret_cast<char*>(a.data()), reinterpret_cast<char*>(b.data())};
  job.members[0]->allreduce(Type::float32, Op::sum, 4, places, places);
  EXPECT_TRUE(job.fake.execute(1));
  job.members[0]->allreduce(Type::float32, Op::sum, 4, places, places);
  EXPECT_EQ(job.wait_for_end(), std::vector<std::string>{"deadline passed"});
  EXPECT_EQ(job.fake.live_comms, 0);
}

// The communicator on fake GPUs: what it makes of them and says.
struct FakeWorld {
  explicit FakeWorld(int devices, Transport transport = Transport::automatic) : devices(devices) {
    options.alone     = true;
    options.transport = transport;
  }
  Communicator make(std::vector<int> const& gpus) {
    options.devices = std::make_shared<DeviceSetup const>(fake.setup(gpus));
    return Communicator(std::vector<Space>(std::size_t(devices)), options);
  }
  int devices;
  FakeGpus fake;
  CommunicatorOptions options;
};

int wrong_sums(Communicator& world, FakeGpus& fake, std::string const& algorithm, std::int64_t count) {
  std::vector<Buffer<float>> buffers;
  for (int r = 0; r < world.size(); ++r) {
    buffers.emplace_back("test", std::size_t(count));
    for (std::int64_t i = 0; i < count; ++i) buffers.back()(std::size_t(i)) = value_at<float>(r, i);
  }
  world.allreduce(algorithm, Op::sum, buffers);
  EXPECT_TRUE(fake.execute(3));
  int found = 0;
  for (auto const& buffer : buffers)
    for (std::int64_t i = 0; i < count; ++i) {
      float expected = 0;
      for (int r = 0; r < world.size(); ++r) expected += value_at<float>(r, i);
      found += buffer(std::size_t(i)) != expected;
    }
  return found;
}

bool has(std::vector<std::string> const& names, std::string const& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

TEST(FakeGpuWorld, SchedulesRunOverNcclWhereItIsAsked) {
  FakeWorld asked(4, Transport::nccl);
  auto world = asked.make(one_each(4));
  EXPECT_EQ(world.transport(), "NCCL");
  EXPECT_EQ(world.notes(), "");
  for (auto const& algorithm : world.algorithms())
    EXPECT_EQ(wrong_sums(world, asked.fake, algorithm, 1001), 0) << algorithm;
  EXPECT_GT(world.traffic().bytes_sent, 0);
  std::vector<Buffer<float>> buffers;
  for (int r = 0; r < 4; ++r) {
    buffers.emplace_back("test", 10);
    Kokkos::deep_copy(buffers.back(), float(r + 5));
  }
  world.broadcast(buffers);
  EXPECT_TRUE(asked.fake.execute(5));
  for (auto const& buffer : buffers) EXPECT_EQ(buffer(9), 5.0f);
}

TEST(FakeGpuWorld, NcclIsABaselineBesideTheInProcessTransport) {
  FakeWorld automatic(4);
  auto world = automatic.make(one_each(4));
  EXPECT_EQ(world.transport(), "in-process");
  EXPECT_TRUE(has(world.algorithms(), "nccl"));
  EXPECT_EQ(wrong_sums(world, automatic.fake, "nccl", 100), 0);
  automatic.fake.log.clear();
  EXPECT_EQ(wrong_sums(world, automatic.fake, "ring", 100), 0);
  // The streams meet before and behind each step and at the end; the host waits for nothing.
  auto const& waits = automatic.fake.log;
  EXPECT_EQ(waits.size(), 6u * (2 * 6 + 1));
  EXPECT_EQ(waits[0], "s0: wait for s1");
  EXPECT_EQ(waits[5], "s3: wait for s0");
  for (auto const& line : waits) EXPECT_NE(line.find(": wait for "), std::string::npos) << line;
}

TEST(FakeGpuWorld, SaysWhyCallsCannotBeInAGraph) {
  auto const obstacle = [](Transport transport, char const* algorithm) {
    FakeWorld made(2, transport);
    return made.make(one_each(2)).graph_obstacle(algorithm);
  };
  EXPECT_EQ(obstacle(Transport::automatic, "ring"), "");
  EXPECT_EQ(obstacle(Transport::automatic, "fused"), "");
  std::string const nccl = "found sums over NCCL, whose calls the host watches; expected the in-process transport";
  EXPECT_EQ(obstacle(Transport::automatic, "nccl"), nccl);
  EXPECT_EQ(obstacle(Transport::nccl, "ring"), nccl);
  FakeWorld automatic(2);
  auto world = automatic.make(one_each(2));
  world.set_choices({{1024, "ring"}});
  EXPECT_EQ(world.graph_obstacle("auto"), "");
  world.set_choices({{1024, "ring"}, {4096, "nccl"}});
  EXPECT_EQ(world.graph_obstacle("auto"), nccl);
  CommunicatorOptions alone;
  alone.alone = true;
  EXPECT_EQ(Communicator({Space()}, alone).graph_obstacle("ring"),
            std::string("found devices on ") + Space::name() + ", expected GPUs");
}

TEST(FakeGpuWorld, TwoRanksOnOneGpuFallBackWithALine) {
  for (bool const same_bus : {false, true}) {
    FakeWorld asked(4, Transport::nccl);
    asked.fake.same_bus = same_bus;
    auto world          = asked.make(same_bus ? one_each(4) : std::vector<int>{0, 1, 0, 1});
    EXPECT_EQ(world.transport(), "in-process");
    EXPECT_NE(world.notes().find(same_bus ? "without NCCL: ranks 0 and 1 share the GPU bus 0 on "
                                          : "without NCCL: ranks 0 and 2 share the GPU bus 0 on "),
              std::string::npos)
        << world.notes();
    EXPECT_FALSE(has(world.algorithms(), "nccl"));
    EXPECT_EQ(wrong_sums(world, asked.fake, "ring", 100), 0);
    message_of([&] { wrong_sums(world, asked.fake, "nccl", 100); }, ExitCode::usage);
  }
}

TEST(FakeGpuWorld, ANcclThatCannotStartIsDoneWithout) {
  FakeWorld asked(2, Transport::nccl);
  asked.fake.failures["ncclCommInitAll"] = 2;
  auto world                             = asked.make(one_each(2));
  EXPECT_EQ(world.transport(), "in-process");
  EXPECT_EQ(world.notes(), "without NCCL: rank 0: ncclCommInitAll: fake error 2");
  EXPECT_EQ(wrong_sums(world, asked.fake, "double_tree", 100), 0);
}

TEST(FakeGpuWorld, GpusThatCannotReadEachOtherCopy) {
  FakeWorld staged(3);
  staged.fake.peers                       = false;
  staged.fake.run_at_once                 = true;
  staged.fake.failures["ncclCommInitAll"] = 2;
  auto world                              = staged.make(one_each(3));
  EXPECT_EQ(world.transport(), "in-process");
  EXPECT_NE(world.notes().find("copies between GPUs"), std::string::npos);
  EXPECT_FALSE(has(world.algorithms(), "fused"));
  for (auto const& algorithm : world.algorithms()) {
    staged.fake.log.clear();
    EXPECT_EQ(wrong_sums(world, staged.fake, algorithm, 1001), 0) << algorithm;
    EXPECT_TRUE(std::any_of(staged.fake.log.begin(), staged.fake.log.end(),
                            [](auto const& line) { return line.find("copy between GPUs") != std::string::npos; }));
    for (auto const& line : staged.fake.log)
      EXPECT_TRUE(line.find("copy between GPUs") != std::string::npos || line.find(": wait for ") != std::string::npos)
          << line;
  }
  staged.fake.failures.clear();
  EXPECT_EQ(staged.make(one_each(3)).transport(), "NCCL");
}

// Real processes, each with a fake GPU of its own: what they agree on. Fakes of several processes move no data.
class FakeGpuJob : public testing::Test {
 protected:
  void SetUp() override {
    if (test_runtime().processes() == 1) GTEST_SKIP() << "needs several processes";
    options.timeout = std::chrono::seconds(60);
  }
  int process() const { return test_runtime().process(); }
  int processes() const { return test_runtime().processes(); }
  Communicator make(int gpu) {
    options.devices = std::make_shared<DeviceSetup const>(fake.setup({gpu}));
    return Communicator({Space()}, options);
  }
  void expect_right_sums(Communicator& world) {
    std::vector<Buffer<float>> const buffers{Buffer<float>("test", 100)};
    Kokkos::deep_copy(buffers[0], float(process() + 1));
    world.allreduce("ring", Op::sum, buffers);
    EXPECT_EQ(buffers[0](99), float(processes() * (processes() + 1) / 2));
  }
  FakeGpus fake;
  CommunicatorOptions options;
};

TEST_F(FakeGpuJob, ProcessesJoinByRankZerosId) {
  auto const world = make(process());
  EXPECT_EQ(world.transport(), "NCCL");
  EXPECT_TRUE(has(world.algorithms(), "nccl"));
  std::string const mine = "ncclCommInitRank " + std::to_string(process()) + " of " + std::to_string(processes()) +
                           " on GPU " + std::to_string(process()) + ", the id";
  EXPECT_TRUE(has(fake.log, mine));
  EXPECT_EQ(has(fake.log, "ncclGetUniqueId"), process() == 0);
  EXPECT_EQ(world.graph_obstacle("ring"),
            "found " + std::to_string(processes()) +
                " processes, expected one: what passes between processes passes the host");
}

TEST_F(FakeGpuJob, TwoRanksOnOneGpuFallBackTogether) {
  auto world = make(process() / 2);
  EXPECT_NE(world.transport(), "NCCL");
  EXPECT_NE(world.notes().find("without NCCL: ranks 0 and 1 share the GPU bus 0 on "), std::string::npos)
      << world.notes();
  EXPECT_FALSE(has(world.algorithms(), "nccl"));
  expect_right_sums(world);
}

TEST_F(FakeGpuJob, OneThatCannotStartTakesTheOthersAlong) {
  bool const last = process() == processes() - 1;
  if (last) fake.failures["ncclCommInitRank"] = 1;
  auto world = make(process());
  EXPECT_EQ(world.notes(), last ? "without NCCL: rank " + std::to_string(process()) + ": ncclCommInitRank: fake error 1"
                                : "without NCCL: another process could not start it");
  EXPECT_EQ(fake.live_comms, 0);
  expect_right_sums(world);
}

}  // namespace
