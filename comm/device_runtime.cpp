// SPDX-License-Identifier: Apache-2.0
#include "comm/device_runtime.hpp"

#include <algorithm>

#include "comm/schedule.hpp"
#include "kernels/error.hpp"

namespace lockstep {

void check(DeviceCalls& calls, int result, char const* what) {
  LOCKSTEP_THROW_IF(result != 0, ExitCode::environment, std::string(what) + ": " + calls.text(result));
}

std::vector<int> map_devices(int gpus, int node_rank, int node_processes, int devices, bool several_per_process) {
  auto own = comm::chunk_range(gpus, node_processes, node_rank);
  if (own.size() == 0) own = {node_rank % gpus, node_rank % gpus + 1};
  if (!several_per_process) own.end = own.begin + 1;
  std::vector<int> map;
  for (int d = 0; d < devices; ++d) map.push_back(int(own.begin + d % own.size()));
  return map;
}

DeviceRuntime::DeviceRuntime(DeviceCalls& calls) : m_calls(calls) {
  int count        = 0;
  int const result = calls.count(count);
  LOCKSTEP_THROW_IF(result != 0 || count == 0, ExitCode::timeout,
                    "found no GPU (" + (result != 0 ? calls.text(result) : calls.version()) +
                        "); this program was built for one: expected at least one that this process may use");
  m_gpus.resize(std::size_t(count));
  for (int g = 0; g < count; ++g) check(calls, calls.describe(g, m_gpus[std::size_t(g)]), "properties of a GPU");
}

DeviceRuntime::~DeviceRuntime() {
  for (auto const& [gpu, streams] : m_streams)
    for (Stream const stream : streams) m_calls.destroy_stream(stream);
}

std::vector<Stream> DeviceRuntime::streams(std::vector<int> const& gpus) {
  std::vector<Stream> streams;
  std::map<int, std::size_t> used;
  for (int const gpu : gpus) {
    auto& of_gpu = m_streams[gpu];
    if (used[gpu] == of_gpu.size()) {
      check(m_calls, m_calls.use(gpu), "choosing a GPU");
      Stream stream = nullptr;
      check(m_calls, m_calls.create_stream(stream), "creating a stream");
      of_gpu.push_back(stream);
    }
    streams.push_back(of_gpu[used[gpu]++]);
  }
  check(m_calls, m_calls.use(gpus.front()), "choosing a GPU");
  return streams;
}

bool enable_peer_access(DeviceCalls& calls, std::vector<int> gpus) {
  std::sort(gpus.begin(), gpus.end());
  gpus.erase(std::unique(gpus.begin(), gpus.end()), gpus.end());
  for (int const gpu : gpus)
    for (int const peer : gpus) {
      bool can = true;
      if (gpu != peer) check(calls, calls.can_access(gpu, peer, can), "asking for peer access");
      if (!can) return false;
    }
  if (gpus.size() < 2) return true;
  for (int const gpu : gpus) {
    check(calls, calls.use(gpu), "choosing a GPU");
    for (int const peer : gpus)
      if (gpu != peer) check(calls, calls.enable_access(peer), "enabling peer access");
  }
  check(calls, calls.use(gpus.front()), "choosing a GPU");
  return true;
}

#if defined(KOKKOS_ENABLE_CUDA)
Space instance_on(Stream stream) {
  return Space(static_cast<cudaStream_t>(stream));
}
Stream stream_of(Space const& space) {
  return space.cuda_stream();
}
int gpu_of(Space const& space) {
  return space.cuda_device();
}
#elif defined(KOKKOS_ENABLE_HIP)
Space instance_on(Stream stream) {
  return Space(static_cast<hipStream_t>(stream));
}
Stream stream_of(Space const& space) {
  return space.hip_stream();
}
int gpu_of(Space const& space) {
  return space.hip_device();
}
#else
Space instance_on(Stream) {
  return Space();
}
Stream stream_of(Space const&) {
  return nullptr;
}
int gpu_of(Space const&) {
  return -1;
}
#endif

}  // namespace lockstep
