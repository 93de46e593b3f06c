// SPDX-License-Identifier: Apache-2.0
// Data-parallel training: one replica of the parameters a device, gradients of whole shards, one reduction, one update.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "kernels/error.hpp"
#include "kernels/types.hpp"
#include "miniapp/buckets.hpp"
#include "miniapp/data/dataset.hpp"
#include "miniapp/executor.hpp"
#include "miniapp/learning_rate.hpp"
#include "miniapp/network.hpp"
#include "miniapp/step_hook.hpp"

namespace lockstep {

enum class Reduction {
  exact,  // 64-bit fixed point: the same bits for every number of devices
  plain   // float32 sums (`--reduction float`)
};

struct TrainerOptions {
  std::int64_t batch = 256;  // of all devices together
  LearningRate learning_rate;
  std::uint64_t seed    = 1;
  Reduction reduction   = Reduction::exact;
  std::string allreduce = "ring";  // one of Communicator::algorithms(), or auto with its table set
  // Gradients are reduced in buckets of about so many bytes, see buckets.hpp; 0: all at once, 1: one tensor a call.
  std::int64_t bucket_bytes = 0;
  // Buckets are reduced by a thread of their own while backward goes on. Takes memory for the activations of a
  // minibatch, see Segments.
  bool overlap            = false;
  std::int64_t accumulate = 1;  // micro-batches a step
  Conv conv               = Conv::direct;
  std::vector<double> weights;  // of the ranks: shards go to them in this proportion; empty: equal shares
  StepHook hook;                // for the verifier; empty otherwise
  // Full minibatches are one graph of the devices' work, captured at the second and launched from then on: to the same
  // bits. On GPUs of one process, without overlap, hook and listening tools; else Error (usage).
  bool graph = false;
};

struct StepResult {
  std::int64_t step   = 0;  // since the start of training, from 1
  std::int64_t images = 0;  // in this minibatch
  double loss         = 0;  // mean over the minibatch, before the update
  // Seconds of this process in calls of the communicator, and those of them that the step had to wait for. 0 where the
  // step is a graph, which tells nothing of its parts.
  double communication = 0, exposed = 0;
  double hidden() const { return communication - exposed; }
};

// The first difference between replicas; step 0: at the start.
struct Divergence {
  bool found        = false;
  std::int64_t step = 0;
  std::string tensor;
  std::string ranks;  // those that differ from rank 0
};

// A gradient or the loss is NaN or Inf: thrown on all ranks alike, with the parameters as before the step.
class NotFinite : public Error {
 public:
  explicit NotFinite(std::string const& message) : Error(ExitCode::wrong_result, message) {}
};

class Trainer {
 public:
  // Collective. Draws the parameters on rank 0 - weights normal(0, 0.01), biases 0 - and gives them to all. Throws
  // Error when the processes' options or data differ.
  Trainer(comm::Communicator& communicator, Network network, Dataset const& train, Dataset const& test,
          TrainerOptions const& options);
  ~Trainer();

  Network const& network() const;
  std::int64_t steps_per_epoch() const;
  std::int64_t step() const;  // steps done

  std::vector<Bucket> const& buckets() const;
  // Whether buckets are reduced while backward goes on; if that was asked for and is not so, why.
  bool overlaps() const;
  std::string const& overlap_notice() const;

  // Collective. One minibatch: the epoch's order is a function of (seed, epoch) alone, the last minibatch of an epoch
  // may be short, its gradient is still a mean over its own images. Throws NotFinite naming step and tensor.
  StepResult advance();

  // Compared after every step by 64-bit fingerprints of each tensor; the same verdict on all ranks.
  Divergence const& divergence() const;
  bool replicas_equal() const { return !divergence().found; }

  // Collective. Correct predictions on the test images, all devices together, each image once.
  std::int64_t count_correct();
  // The same on every process's first device alone: the reference.
  std::int64_t count_correct_alone();

  // Host copies of a local device's replica.
  std::vector<float> parameters(int local = 0) const;
  // Collective. Continues from a saved state: every replica gets process 0's values (those of other processes are not
  // looked at), the next minibatch is number step + 1, `step` being the same on all.
  void restore(std::vector<float> const& parameters, std::int64_t step);

  // SHA-256 of the first local device's float32 parameters in order, little-endian.
  std::string parameters_sha256() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> m_impl;
};

}  // namespace lockstep
