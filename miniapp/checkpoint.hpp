// SPDX-License-Identifier: Apache-2.0
// Checkpoints of training, and weights for other programs; both are safetensors files. One process writes; nothing here
// communicates.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "miniapp/network.hpp"

namespace lockstep {

// What a run's bits depend on besides the state, as text: "batch" = "256". Devices, processes, threads and the
// allreduce algorithm are none of them: a checkpoint may be continued on others, to the same bits in exact mode.
struct RunSetting {
  std::string name, value;
};

struct TrainingState {
  std::int64_t step = 0;          // steps done; the order of an epoch's images is a function of seed and epoch alone
  double epoch_loss = 0;          // sum of the losses of the images seen in the epoch that step lies in
  std::vector<float> parameters;  // all tensors in order; plain SGD has no other state
};

struct Checkpoint {
  std::string path;
  TrainingState state;
};

// Creates the folder if need be. Throws Error (usage) if it holds checkpoints of another run than the one that resumes
// from `resume`, this folder or a file in it (empty: none does): those of this run would take their places.
void prepare_checkpoint_folder(std::string const& folder, std::string const& resume);

// Writes folder/step-NNNNNNNN.safetensors at once or not at all, then removes all checkpoints but this and the one
// before. Returns the path. Throws Error (environment), older checkpoints are then still there.
std::string save_checkpoint(std::string const& folder, Network const& network, std::vector<RunSetting> const& settings,
                            TrainingState const& state);

// Reads a checkpoint file, or the latest in a folder. Throws Error (usage) with one line when there is none, when it is
// damaged or foreign - naming the newest older one that is good - or when a setting or the network differs, naming it.
Checkpoint load_checkpoint(std::string const& path, Network const& network, std::vector<RunSetting> const& settings);

// The parameters alone; replaces the file if it exists.
void save_weights(std::string const& path, Network const& network, std::vector<float> const& parameters);

}  // namespace lockstep
