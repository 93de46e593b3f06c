// SPDX-License-Identifier: Apache-2.0
// Which way data takes between ranks, from facts that all ranks share.
#pragma once
#include "comm/communicator.hpp"

#include <string>

namespace lockstep::comm {

struct TransportFacts {
  Transport asked = Transport::automatic;
  int processes = 1, ranks = 1;
  bool on_gpus = false;
  bool peers   = true;       // devices of a process can read each other's memory
  std::string nccl_missing;  // why NCCL cannot be used; empty: it can
};

struct TransportChoice {
  bool nccl      = false;  // communicators are made, for the algorithm `nccl` at least
  bool schedules = false;  // schedules run over it too
  bool direct    = true;   // devices of a process read each other's memory in place
  std::string note;        // for people
};

// Throws Error (usage) where NCCL is asked for without GPUs.
TransportChoice choose_transport(TransportFacts const& facts);

// What an MPI library says of itself.
enum class Claim { reads_devices, does_not, says_nothing };

struct StagingFacts {
  bool on_host        = true;   // devices' memory is the host's
  bool asked          = false;  // --host-staging
  Claim library       = Claim::says_nothing;
  char const* promise = nullptr;  // a variable of the environment that tells the library to read device memory
};

struct Staging {
  bool through_host = false;
  std::string note;  // for people; empty on host memory
};

// Whether a tiny message from device memory may be tried: a library that never heard of GPUs would crash on it.
bool worth_probing(StagingFacts const& facts);
Staging choose_staging(StagingFacts const& facts, bool message_arrived);

// By the library's own query, where it has one.
Claim mpi_claim();
// The variable, and null if none is set.
char const* mpi_promise();

}  // namespace lockstep::comm
