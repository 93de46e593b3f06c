// SPDX-License-Identifier: Apache-2.0
// The promise of exact mode as a table: devices x algorithms x transports x placements, bucket layouts and overlap
// in turn, give one SHA-256 of the chapter's network. Processes and threads are what the launcher started this with.
#include <gtest/gtest.h>

#include <iterator>

#include "miniapp/data/dataset.hpp"
#include "miniapp/trainer.hpp"
#include "tests/test_runtime.hpp"

namespace lockstep {
namespace {

constexpr int steps = 120;

struct Bits {
  std::string sha256;
  std::vector<double> losses;
  std::int64_t correct = 0;

  bool operator==(Bits const& other) const {
    return sha256 == other.sha256 && losses == other.losses && correct == other.correct;
  }
};

// Minibatches of 32, 32 and 5: the second size has shards of another length, and fewer of them than there may be
// devices.
TrainTest const& data() {
  static TrainTest const data = load_dataset("synthetic", 69, 50);
  return data;
}

// One bucket, one a tensor, several tensors in some; the last two also while backward goes on.
struct Layout {
  std::int64_t bucket_bytes;
  bool overlap;
};
constexpr Layout layouts[] = {{0, false}, {1, true}, {110000, false}, {110000, true}, {1, false}};

Bits train(comm::Communicator& communicator, std::string const& algorithm, Layout const& layout) {
  TrainerOptions options;
  options.batch        = 32;
  options.allreduce    = algorithm;
  options.bucket_bytes = layout.bucket_bytes;
  options.overlap      = layout.overlap;
  Trainer trainer(communicator, Network::chapter(), data().train, data().test, options);
  EXPECT_EQ(trainer.overlaps(), layout.overlap) << trainer.overlap_notice();
  Bits bits;
  for (int step = 0; step < steps; ++step) bits.losses.push_back(trainer.advance().loss);
  bits.sha256  = trainer.parameters_sha256();
  bits.correct = trainer.count_correct();
  EXPECT_TRUE(trainer.replicas_equal());
  return bits;
}

// One device of one process, whatever the launcher started.
Bits const& alone() {
  static Bits const bits = [] {
    comm::CommunicatorOptions options;
    options.alone = true;
    comm::Communicator communicator(std::vector<Space>(1), options);
    return train(communicator, "ring", layouts[0]);
  }();
  return bits;
}

TEST(Bits, AreThoseOfOneDeviceOnEveryWorld) {
  int const processes = test_runtime().processes();
  std::size_t turn    = std::size_t(processes);
  std::vector<comm::Transport> transports{comm::Transport::automatic};
  if (processes > 1) transports.push_back(comm::Transport::messages);
  for (auto const transport : transports)
    for (int local = 1; local <= (processes == 1 ? 8 : processes == 2 ? 2 : 1); ++local) {
      comm::CommunicatorOptions options;
      options.transport = transport;
      comm::Communicator communicator(std::vector<Space>(std::size_t(local)), options);
      for (auto const& algorithm : communicator.algorithms()) {
        Layout const& layout = layouts[turn++ % std::size(layouts)];
        EXPECT_TRUE(train(communicator, algorithm, layout) == alone())
            << algorithm << " over " << communicator.transport() << ", " << processes << " x " << local
            << ", buckets of " << layout.bucket_bytes << " bytes, overlap " << layout.overlap;
      }
    }
}

}  // namespace
}  // namespace lockstep
