// SPDX-License-Identifier: Apache-2.0
// The real calls of CUDA's runtime, or of HIP's, which has the same ones under its own names.
#include "comm/device_runtime.hpp"

#if defined(LOCKSTEP_HAVE_CUDA)
#include <cuda_runtime_api.h>
#define LOCKSTEP_GPU(name) cuda##name
#elif defined(LOCKSTEP_HAVE_HIP)
#include <hip/hip_runtime_api.h>
#define LOCKSTEP_GPU(name) hip##name
#endif

#ifdef LOCKSTEP_GPU
namespace {
namespace gpu {

using Result             = LOCKSTEP_GPU(Error_t);
using NativeStream       = LOCKSTEP_GPU(Stream_t);
using NativeEvent        = LOCKSTEP_GPU(Event_t);
using NativeGraph        = LOCKSTEP_GPU(Graph_t);
using NativeProgram      = LOCKSTEP_GPU(GraphExec_t);
constexpr Result success = LOCKSTEP_GPU(Success);

#ifdef LOCKSTEP_HAVE_CUDA
using Properties           = cudaDeviceProp;
constexpr char const* name = "CUDA";
constexpr int compiled     = CUDART_VERSION;
std::string version_text(int v) {
  return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
}

// Memory of Kokkos may come from the pool that a GPU allocates from in stream order; access to it is given apart.
Result share_pool(int owner, int reader) {
  int pools = 0;
  if (Result const result = cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, owner); result != success)
    return result;
  if (!pools) return success;
  cudaMemPool_t pool;
  if (Result const result = cudaDeviceGetDefaultMemPool(&pool, owner); result != success) return result;
  cudaMemAccessDesc access = {};
  access.location.type     = cudaMemLocationTypeDevice;
  access.location.id       = reader;
  access.flags             = cudaMemAccessFlagsProtReadWrite;
  return cudaMemPoolSetAccess(pool, &access, 1);
}
#else
using Properties           = hipDeviceProp_t;
constexpr char const* name = "HIP";
constexpr int compiled     = HIP_VERSION;
std::string version_text(int v) {
  return std::to_string(v / 10000000) + "." + std::to_string(v / 100000 % 100);
}
Result share_pool(int, int) {
  return success;
}
#endif

}  // namespace gpu
}  // namespace
#endif

namespace lockstep {

#ifdef LOCKSTEP_GPU
namespace {

class RealCalls final : public DeviceCalls {
 public:
  std::string version() override {
    int driver       = 0;
    bool const known = LOCKSTEP_GPU(DriverGetVersion)(&driver) == gpu::success && driver != 0;
    return std::string(gpu::name) + " " + gpu::version_text(gpu::compiled) + ", " +
           (known ? "driver " + gpu::version_text(driver) : "no driver");
  }
  std::string text(int result) override { return LOCKSTEP_GPU(GetErrorString)(gpu::Result(result)); }
  int count(int& gpus) override { return forget(LOCKSTEP_GPU(GetDeviceCount)(&gpus)); }
  int describe(int gpu, Gpu& found) override {
    gpu::Properties properties;
    if (int const result = forget(LOCKSTEP_GPU(GetDeviceProperties)(&properties, gpu))) return result;
    found.name    = properties.name;
    char bus[64]  = {};
    int const bad = forget(LOCKSTEP_GPU(DeviceGetPCIBusId)(bus, int(sizeof bus), gpu));
    found.bus     = bus;
    return bad;
  }
  int use(int gpu) override { return forget(LOCKSTEP_GPU(SetDevice)(gpu)); }
  // Independent of the legacy default stream: waits for it would serialise devices.
  int create_stream(Stream& stream) override {
    gpu::NativeStream made = nullptr;
    int const result       = forget(LOCKSTEP_GPU(StreamCreateWithFlags)(&made, LOCKSTEP_GPU(StreamNonBlocking)));
    stream                 = made;
    return result;
  }
  int destroy_stream(Stream stream) override { return forget(LOCKSTEP_GPU(StreamDestroy)(gpu::NativeStream(stream))); }
  int can_access(int gpu, int peer, bool& can) override {
    int yes          = 0;
    int const result = forget(LOCKSTEP_GPU(DeviceCanAccessPeer)(&yes, gpu, peer));
    can              = yes != 0;
    return result;
  }
  int enable_access(int peer) override {
    auto const result = LOCKSTEP_GPU(DeviceEnablePeerAccess)(peer, 0);
    if (result != LOCKSTEP_GPU(ErrorPeerAccessAlreadyEnabled) && result != gpu::success) return forget(result);
    LOCKSTEP_GPU(GetLastError)();
    int reader = 0;
    if (int const bad = forget(LOCKSTEP_GPU(GetDevice)(&reader))) return bad;
    return forget(gpu::share_pool(peer, reader));
  }
  int copy(Stream stream, void* to, void const* from, std::size_t bytes) override {
    return forget(LOCKSTEP_GPU(MemcpyAsync)(to, from, bytes, LOCKSTEP_GPU(MemcpyDefault), gpu::NativeStream(stream)));
  }
  int create_event(Event& event) override {
    gpu::NativeEvent made = nullptr;
    int const result      = forget(LOCKSTEP_GPU(EventCreateWithFlags)(&made, LOCKSTEP_GPU(EventDisableTiming)));
    event                 = made;
    return result;
  }
  int destroy_event(Event event) override { return forget(LOCKSTEP_GPU(EventDestroy)(gpu::NativeEvent(event))); }
  int record(Event event, Stream stream) override {
    return forget(LOCKSTEP_GPU(EventRecord)(gpu::NativeEvent(event), gpu::NativeStream(stream)));
  }
  int query(Event event, bool& done) override {
    auto const result = LOCKSTEP_GPU(EventQuery)(gpu::NativeEvent(event));
    done              = result == gpu::success;
    if (result == LOCKSTEP_GPU(ErrorNotReady)) LOCKSTEP_GPU(GetLastError)();
    return result == LOCKSTEP_GPU(ErrorNotReady) ? 0 : forget(result);
  }
  int wait(Stream stream, Event event) override {
    return forget(LOCKSTEP_GPU(StreamWaitEvent)(gpu::NativeStream(stream), gpu::NativeEvent(event), 0));
  }
  // Relaxed: Kokkos asks for empty memory and for kernels' properties in between, which changes nothing on the stream.
  int begin_capture(Stream stream) override {
    return forget(LOCKSTEP_GPU(StreamBeginCapture)(gpu::NativeStream(stream), LOCKSTEP_GPU(StreamCaptureModeRelaxed)));
  }
  int end_capture(Stream stream, Graph& graph) override {
    gpu::NativeGraph made = nullptr;
    int const result      = forget(LOCKSTEP_GPU(StreamEndCapture)(gpu::NativeStream(stream), &made));
    graph                 = made;
    return result;
  }
  int instantiate(Graph graph, Program& program) override {
    gpu::NativeProgram made = nullptr;
    int const result        = forget(LOCKSTEP_GPU(GraphInstantiateWithFlags)(&made, gpu::NativeGraph(graph), 0));
    program                 = made;
    return result;
  }
  int launch(Program program, Stream stream) override {
    return forget(LOCKSTEP_GPU(GraphLaunch)(gpu::NativeProgram(program), gpu::NativeStream(stream)));
  }
  int destroy_graph(Graph graph) override { return forget(LOCKSTEP_GPU(GraphDestroy)(gpu::NativeGraph(graph))); }
  int destroy_program(Program program) override {
    return forget(LOCKSTEP_GPU(GraphExecDestroy)(gpu::NativeProgram(program)));
  }

 private:
  // Errors that were reported must not meet Kokkos' next check again.
  static int forget(gpu::Result result) {
    if (result != gpu::success) LOCKSTEP_GPU(GetLastError)();
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
