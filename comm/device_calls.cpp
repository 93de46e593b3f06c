// SPDX-License-Identifier: Apache-2.0
// The real calls of CUDA's runtime, or of HIP's, which has the same ones under its own names.
#include "comm/device_runtime.hpp"

#if defined(LOCKSTEP_HAVE_CUDA)
#include <cuda_runtime_api.h>
namespace {
namespace gpu {
using Result                               = cudaError_t;
using NativeStream                         = cudaStream_t;
using NativeEvent                          = cudaEvent_t;
using Properties                           = cudaDeviceProp;
constexpr char const* name                 = "CUDA";
constexpr Result already_enabled           = cudaErrorPeerAccessAlreadyEnabled;
constexpr Result not_ready                 = cudaErrorNotReady;
constexpr auto* device_count               = &cudaGetDeviceCount;
constexpr auto* set_device                 = &cudaSetDevice;
constexpr auto* bus_id                     = &cudaDeviceGetPCIBusId;
constexpr auto* can_access                 = &cudaDeviceCanAccessPeer;
constexpr auto* enable_access              = &cudaDeviceEnablePeerAccess;
constexpr auto* stream_create              = &cudaStreamCreateWithFlags;
constexpr auto* stream_destroy             = &cudaStreamDestroy;
constexpr auto* event_destroy              = &cudaEventDestroy;
constexpr auto* event_query                = &cudaEventQuery;
constexpr auto* last_error                 = &cudaGetLastError;
constexpr auto* error_text                 = &cudaGetErrorString;
constexpr auto* driver_version             = &cudaDriverGetVersion;
constexpr unsigned int stream_non_blocking = cudaStreamNonBlocking;
Result properties(Properties* found, int device) {
  return cudaGetDeviceProperties(found, device);
}
Result event_create(NativeEvent* event) {
  return cudaEventCreateWithFlags(event, cudaEventDisableTiming);
}
Result event_record(NativeEvent event, NativeStream stream) {
  return cudaEventRecord(event, stream);
}
Result copy(void* to, void const* from, std::size_t bytes, NativeStream stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}
std::string version_text(int v) {
  return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
}
constexpr int compiled = CUDART_VERSION;

// Memory of Kokkos may come from the pool that a GPU allocates from in stream order; access to it is given apart.
Result share_pool(int owner, int reader) {
  int pools = 0;
  if (Result const result = cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, owner);
      result != cudaSuccess)
    return result;
  if (!pools) return cudaSuccess;
  cudaMemPool_t pool;
  if (Result const result = cudaDeviceGetDefaultMemPool(&pool, owner); result != cudaSuccess) return result;
  cudaMemAccessDesc access = {};
  access.location.type     = cudaMemLocationTypeDevice;
  access.location.id       = reader;
  access.flags             = cudaMemAccessFlagsProtReadWrite;
  return cudaMemPoolSetAccess(pool, &access, 1);
}
Result current(int* device) {
  return cudaGetDevice(device);
}
}  // namespace gpu
}  // namespace
#elif defined(LOCKSTEP_HAVE_HIP)
#include <hip/hip_runtime_api.h>
namespace {
namespace gpu {
using Result                               = hipError_t;
using NativeStream                         = hipStream_t;
using NativeEvent                          = hipEvent_t;
using Properties                           = hipDeviceProp_t;
constexpr char const* name                 = "HIP";
constexpr Result already_enabled           = hipErrorPeerAccessAlreadyEnabled;
constexpr Result not_ready                 = hipErrorNotReady;
constexpr auto* device_count               = &hipGetDeviceCount;
constexpr auto* set_device                 = &hipSetDevice;
constexpr auto* bus_id                     = &hipDeviceGetPCIBusId;
constexpr auto* can_access                 = &hipDeviceCanAccessPeer;
constexpr auto* enable_access              = &hipDeviceEnablePeerAccess;
constexpr auto* stream_create              = &hipStreamCreateWithFlags;
constexpr auto* stream_destroy             = &hipStreamDestroy;
constexpr auto* event_destroy              = &hipEventDestroy;
constexpr auto* event_query                = &hipEventQuery;
constexpr auto* last_error                 = &hipGetLastError;
constexpr auto* error_text                 = &hipGetErrorString;
constexpr auto* driver_version             = &hipDriverGetVersion;
constexpr unsigned int stream_non_blocking = hipStreamNonBlocking;
Result properties(Properties* found, int device) {
  return hipGetDeviceProperties(found, device);
}
Result event_create(NativeEvent* event) {
  return hipEventCreateWithFlags(event, hipEventDisableTiming);
}
Result event_record(NativeEvent event, NativeStream stream) {
  return hipEventRecord(event, stream);
}
Result copy(void* to, void const* from, std::size_t bytes, NativeStream stream) {
  return hipMemcpyAsync(to, from, bytes, hipMemcpyDefault, stream);
}
std::string version_text(int v) {
  return std::to_string(v / 10000000) + "." + std::to_string(v / 100000 % 100);
}
constexpr int compiled = HIP_VERSION;
Result share_pool(int, int) {
  return hipSuccess;
}
Result current(int* device) {
  return hipGetDevice(device);
}
}  // namespace gpu
}  // namespace
#endif

namespace lockstep {

#if defined(LOCKSTEP_HAVE_CUDA) || defined(LOCKSTEP_HAVE_HIP)
namespace {

class RealCalls final : public DeviceCalls {
 public:
  std::string version() override {
    int driver       = 0;
    bool const known = gpu::driver_version(&driver) == gpu::Result(0) && driver != 0;
    return std::string(gpu::name) + " " + gpu::version_text(gpu::compiled) + ", " +
           (known ? "driver " + gpu::version_text(driver) : "no driver");
  }
  std::string text(int result) override { return gpu::error_text(gpu::Result(result)); }
  int count(int& gpus) override { return forget(gpu::device_count(&gpus)); }
  int describe(int gpu, Gpu& found) override {
    gpu::Properties properties;
    if (int const result = forget(gpu::properties(&properties, gpu))) return result;
    found.name    = properties.name;
    char bus[64]  = {};
    int const bad = forget(gpu::bus_id(bus, int(sizeof bus), gpu));
    found.bus     = bus;
    return bad;
  }
  int use(int gpu) override { return forget(gpu::set_device(gpu)); }
  // Independent of the legacy default stream: waits for it would serialise devices.
  int create_stream(Stream& stream) override {
    gpu::NativeStream made = nullptr;
    int const result       = forget(gpu::stream_create(&made, gpu::stream_non_blocking));
    stream                 = made;
    return result;
  }
  int destroy_stream(Stream stream) override { return forget(gpu::stream_destroy(gpu::NativeStream(stream))); }
  int can_access(int gpu, int peer, bool& can) override {
    int yes          = 0;
    int const result = forget(gpu::can_access(&yes, gpu, peer));
    can              = yes != 0;
    return result;
  }
  int enable_access(int peer) override {
    auto const result = gpu::enable_access(peer, 0);
    if (result != gpu::already_enabled && result != gpu::Result(0)) return forget(result);
    gpu::last_error();
    int reader = 0;
    if (int const bad = forget(gpu::current(&reader))) return bad;
    return forget(gpu::share_pool(peer, reader));
  }
  int copy(Stream stream, void* to, void const* from, std::size_t bytes) override {
    return forget(gpu::copy(to, from, bytes, gpu::NativeStream(stream)));
  }
  int create_event(Event& event) override {
    gpu::NativeEvent made = nullptr;
    int const result      = forget(gpu::event_create(&made));
    event                 = made;
    return result;
  }
  int destroy_event(Event event) override { return forget(gpu::event_destroy(gpu::NativeEvent(event))); }
  int record(Event event, Stream stream) override {
    return forget(gpu::event_record(gpu::NativeEvent(event), gpu::NativeStream(stream)));
  }
  int query(Event event, bool& done) override {
    auto const result = gpu::event_query(gpu::NativeEvent(event));
    done              = result == gpu::Result(0);
    if (result == gpu::not_ready) gpu::last_error();
    return result == gpu::not_ready ? 0 : forget(result);
  }

 private:
  // Errors that were reported must not meet Kokkos' next check again.
  static int forget(gpu::Result result) {
    if (result != gpu::Result(0)) gpu::last_error();
    return int(result);
  }
};

}  // namespace

DeviceCalls* device_calls() {
  static RealCalls calls;
  return &calls;
}
#else
DeviceCalls* device_calls() {
  return nullptr;
}
#endif

}  // namespace lockstep
