// SPDX-License-Identifier: Apache-2.0
// The only header that knows Kokkos versions (3.4 to 5.x).
#pragma once
#include <Kokkos_Core.hpp>
#include <atomic>
#include <string>
#include <type_traits>
#include <vector>

#define LOCKSTEP_KOKKOS_AT_LEAST(major, minor, patch) (KOKKOS_VERSION >= (major)*10000 + (minor)*100 + (patch))

namespace lockstep {

// A thread beside the one that works with Kokkos. It launches nothing, since Kokkos' host back ends take kernels from
// one thread, and Kokkos' tools, which keep one stack of regions, do not hear of it; a listener of our own may.
inline thread_local bool on_side_thread = false;
struct SideListener {
  void (*push)(char const* label);
  void (*pop)();
};
inline std::atomic<SideListener const*> side_listener{nullptr};

inline bool somebody_listens() {
  return on_side_thread ? side_listener.load() != nullptr : Kokkos::Profiling::profileLibraryLoaded();
}
inline void push_region(std::string const& label) {
  if (!on_side_thread)
    Kokkos::Profiling::pushRegion(label);
  else if (auto const* const listener = side_listener.load())
    listener->push(label.c_str());
}
inline void pop_region() {
  if (!on_side_thread)
    Kokkos::Profiling::popRegion();
  else if (auto const* const listener = side_listener.load())
    listener->pop();
}

class ScopedRegion {
 public:
  explicit ScopedRegion(std::string const& label) { push_region(label); }
  ~ScopedRegion() { pop_region(); }
  ScopedRegion(ScopedRegion const&)            = delete;
  ScopedRegion& operator=(ScopedRegion const&) = delete;
};

// A region whose label takes some making: made only where a tool listens. What follows the label's first space is
// detail.
class DetailedRegion {
 public:
  DetailedRegion() = default;
  template <class Label>
  explicit DetailedRegion(Label const& label) : m_open(somebody_listens()) {
    if (m_open) push_region(label());
  }
  ~DetailedRegion() {
    if (m_open) pop_region();
  }
  DetailedRegion(DetailedRegion const&)            = delete;
  DetailedRegion& operator=(DetailedRegion const&) = delete;

 private:
  bool m_open = false;
};

// What runs inside is work of these devices (ranks in the world): each has a track of its own in a timeline.
inline DetailedRegion device_region(int first, int last) {
  return DetailedRegion([=] { return "lockstep::device " + std::to_string(first) + " to " + std::to_string(last); });
}
inline DetailedRegion device_region(int rank) {
  return device_region(rank, rank);
}

// FIXME(Kokkos >= 3.5): becomes space.fence(label).
template <class ExecutionSpace>
void fence(ExecutionSpace const& space, std::string const& label) {
#if LOCKSTEP_KOKKOS_AT_LEAST(3, 5, 0)
  space.fence(label);
#else
  (void)label;
  space.fence();
#endif
}

// Kokkos::parallel_for with the functor among the kernel's arguments. GPU back ends pass large functors through one
// buffer else, and the host waits until it is free: launches do not run ahead, and a graph cannot hold them.
template <class Policy, class Functor>
void launch(std::string const& label, Policy const& policy, Functor const& functor) {
  if constexpr (Kokkos::SpaceAccessibility<typename Policy::execution_space, Kokkos::HostSpace>::accessible) {
    Kokkos::parallel_for(label, policy, functor);
  } else {
    static_assert(sizeof(Functor) <= 3072, "arguments have 4 KiB, of which the policy takes some");
    constexpr auto by_arguments = Kokkos::Experimental::WorkItemProperty::HintLightWeight;
    Kokkos::parallel_for(label, Kokkos::Experimental::require(policy, by_arguments), functor);
  }
}

// threads: of host back ends that have some; 0 leaves the choice to Kokkos. gpu: its number in this process; -1: none.
// FIXME(Kokkos >= 3.7): becomes Kokkos::initialize(Kokkos::InitializationSettings()...).
inline void initialize_kokkos(int threads, int gpu = -1) {
#if LOCKSTEP_KOKKOS_AT_LEAST(3, 7, 0)
  Kokkos::InitializationSettings settings;
  settings.set_disable_warnings(true);
  if (threads > 0) settings.set_num_threads(threads);
  if (gpu >= 0) settings.set_device_id(gpu);
  Kokkos::initialize(settings);
#else
  Kokkos::InitArguments arguments;
  arguments.disable_warnings = true;
  if (threads > 0) arguments.num_threads = threads;
  if (gpu >= 0) arguments.device_id = gpu;
  Kokkos::initialize(arguments);
#endif
}

// FIXME(Kokkos >= 4.0): becomes space.concurrency().
template <class ExecutionSpace>
int concurrency(ExecutionSpace const& space) {
#if LOCKSTEP_KOKKOS_AT_LEAST(4, 0, 0)
  return int(space.concurrency());
#else
  (void)space;
  return int(ExecutionSpace::concurrency());
#endif
}

// Whether one process can have instances on several GPUs.
// FIXME(Kokkos >= 4.3): true with CUDA.
#if defined(KOKKOS_ENABLE_CUDA) && LOCKSTEP_KOKKOS_AT_LEAST(4, 3, 0)
constexpr bool several_gpus_per_process = true;
#else
constexpr bool several_gpus_per_process = false;
#endif

// Host memory that a device copies from and to without a detour.
// FIXME(Kokkos >= 4.0): becomes Kokkos::SharedHostPinnedSpace.
#if defined(KOKKOS_ENABLE_CUDA)
using PinnedMemory = Kokkos::CudaHostPinnedSpace;
#elif defined(KOKKOS_ENABLE_HIP) && LOCKSTEP_KOKKOS_AT_LEAST(4, 0, 0)
using PinnedMemory = Kokkos::HIPHostPinnedSpace;
#elif defined(KOKKOS_ENABLE_HIP)
using PinnedMemory = Kokkos::Experimental::HIPHostPinnedSpace;
#else
using PinnedMemory = Kokkos::HostSpace;
#endif

// An execution-space instance that is not the default one, where this Kokkos has such; else the default one.
// FIXME(Kokkos >= 4.2): only the first branch is left.
template <class ExecutionSpace = Kokkos::DefaultExecutionSpace>
ExecutionSpace distinct_instance() {
#if LOCKSTEP_KOKKOS_AT_LEAST(4, 2, 0)
  return Kokkos::Experimental::partition_space(ExecutionSpace(), std::vector<int>{1})[0];
#else
  return ExecutionSpace();
#endif
}

// Calls a function of Kokkos Kernels, on this instance where it takes one.
// FIXME(Kokkos Kernels >= 4.0): becomes function(space, arguments...).
template <class ExecutionSpace, class Function, class... Arguments>
void call_on(ExecutionSpace const& space, Function const& function, Arguments const&... arguments) {
  if constexpr (std::is_invocable_v<Function, ExecutionSpace const&, Arguments const&...>) {
    function(space, arguments...);
  } else {
    (void)space;
    function(arguments...);
  }
}

}  // namespace lockstep
