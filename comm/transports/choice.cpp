// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/choice.hpp"

#include <cstdlib>
#include <cstring>

#include "kernels/error.hpp"

#ifdef LOCKSTEP_HAVE_MPI
#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#endif

namespace lockstep::comm {

TransportChoice choose_transport(TransportFacts const& facts) {
  TransportChoice choice;
  LOCKSTEP_THROW_IF(facts.asked == Transport::nccl && !facts.on_gpus, ExitCode::usage,
                    "transport nccl on devices that are parts of the host; expected GPUs, or another transport");
  if (!facts.on_gpus) return choice;
  choice.direct = facts.peers;
  choice.nccl   = facts.nccl_missing.empty() && facts.ranks > 1;
  bool const wants =
      facts.asked == Transport::nccl || (facts.asked == Transport::automatic && (facts.processes > 1 || !facts.peers));
  choice.schedules = choice.nccl && wants;
  if (facts.ranks > 1 && wants && !choice.nccl) choice.note = "without NCCL: " + facts.nccl_missing;
  if (!choice.direct && !choice.schedules)
    choice.note +=
        std::string(choice.note.empty() ? "" : "; ") + "copies between GPUs, which cannot read each other's memory";
  return choice;
}

bool worth_probing(StagingFacts const& facts) {
  if (facts.on_host || facts.asked) return false;
  return facts.library == Claim::reads_devices || (facts.library == Claim::says_nothing && facts.promise);
}

Staging choose_staging(StagingFacts const& facts, bool message_arrived) {
  if (facts.asked) return {true, "messages pass through host memory, as asked"};
  if (facts.on_host) return {false, ""};
  std::string const through = "messages pass through pinned host memory: ";
  if (facts.library == Claim::does_not) return {true, through + "the MPI library says that it cannot read devices"};
  if (!worth_probing(facts)) return {true, through + "the MPI library does not say that it can read devices"};
  std::string const who =
      facts.library == Claim::reads_devices ? "the MPI library's claim" : std::string(facts.promise) + " is set";
  if (!message_arrived) return {true, through + "a message from a device did not arrive whole, despite " + who};
  return {false, "MPI reads device memory (" + who + ", and a message from a device arrived)"};
}

Claim mpi_claim() {
#if defined(LOCKSTEP_HAVE_MPI) && defined(LOCKSTEP_HAVE_HIP)
#if defined(MPIX_ROCM_AWARE_SUPPORT) && MPIX_ROCM_AWARE_SUPPORT
  return MPIX_Query_rocm_support() ? Claim::reads_devices : Claim::does_not;
#elif defined(MPIX_GPU_SUPPORT_HIP)
  int supported = 0;
  if (MPIX_GPU_query_support(MPIX_GPU_SUPPORT_HIP, &supported) != MPI_SUCCESS) return Claim::says_nothing;
  return supported ? Claim::reads_devices : Claim::does_not;
#endif
#elif defined(LOCKSTEP_HAVE_MPI)
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() ? Claim::reads_devices : Claim::does_not;
#elif defined(MPIX_GPU_SUPPORT_CUDA)
  int supported = 0;
  if (MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &supported) != MPI_SUCCESS) return Claim::says_nothing;
  return supported ? Claim::reads_devices : Claim::does_not;
#endif
#endif
  return Claim::says_nothing;
}

char const* mpi_promise() {
  for (char const* name : {"MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA", "MV2_USE_ROCM", "I_MPI_OFFLOAD"})
    if (char const* value = std::getenv(name); value && std::strcmp(value, "0") != 0) return name;
  return nullptr;
}

}  // namespace lockstep::comm
