// SPDX-License-Identifier: Apache-2.0
// The real calls; nothing but this file needs NCCL's header.
#include "comm/transports/nccl.hpp"

#ifdef LOCKSTEP_HAVE_NCCL
#if defined(LOCKSTEP_HAVE_HIP)
#include <rccl/rccl.h>
#else
#include <nccl.h>
#endif
#include <cstring>
#endif

namespace lockstep::comm {

#ifdef LOCKSTEP_HAVE_NCCL
namespace {

#if defined(LOCKSTEP_HAVE_HIP)
using NativeStream = hipStream_t;
#else
using NativeStream = cudaStream_t;
#endif

ncclDataType_t native(Type type) {
  return type == Type::float32 ? ncclFloat32 : type == Type::float64 ? ncclFloat64 : ncclInt64;
}
ncclRedOp_t native(Op op) {
  return op == Op::sum ? ncclSum : op == Op::max ? ncclMax : ncclMin;
}
ncclComm_t native(NcclComm comm) {
  return static_cast<ncclComm_t>(comm);
}
NativeStream native_stream(Stream stream) {
  return static_cast<NativeStream>(stream);
}

class RealCalls final : public NcclCalls {
 public:
  std::string text(int result) override { return ncclGetErrorString(ncclResult_t(result)); }
  int version(int& code) override { return ncclGetVersion(&code); }
  int unique_id(NcclId& id) override {
    static_assert(sizeof(ncclUniqueId) == sizeof id.bytes, "an id has 128 bytes");
    ncclUniqueId made;
    int const result = ncclGetUniqueId(&made);
    std::memcpy(id.bytes, &made, sizeof id.bytes);
    return result;
  }
  int init_all(NcclComm* comms, int count, int const* gpus) override {
    std::vector<ncclComm_t> made(std::size_t(count), nullptr);
    int const result = ncclCommInitAll(made.data(), count, gpus);
    for (std::size_t i = 0; i < made.size(); ++i) comms[i] = result == ncclSuccess ? made[i] : nullptr;
    return result;
  }
  // In a group the communicator is made when the group ends: it is written where it will stay.
  int init_rank(NcclComm& comm, int ranks, NcclId const& id, int rank) override {
    static_assert(sizeof(ncclComm_t) == sizeof comm, "a communicator is a pointer");
    ncclUniqueId given;
    std::memcpy(&given, id.bytes, sizeof id.bytes);
    return ncclCommInitRank(reinterpret_cast<ncclComm_t*>(&comm), ranks, given, rank);
  }
  int group_start() override { return ncclGroupStart(); }
  int group_end() override { return ncclGroupEnd(); }
  int send(void const* from, std::size_t count, Type type, int peer, NcclComm comm, Stream stream) override {
    return ncclSend(from, count, native(type), peer, native(comm), native_stream(stream));
  }
  int recv(void* to, std::size_t count, Type type, int peer, NcclComm comm, Stream stream) override {
    return ncclRecv(to, count, native(type), peer, native(comm), native_stream(stream));
  }
  int allreduce(void const* from, void* to, std::size_t count, Type type, Op op, NcclComm comm,
                Stream stream) override {
    return ncclAllReduce(from, to, count, native(type), native(op), native(comm), native_stream(stream));
  }
  int async_error(NcclComm comm, int& error) override {
    ncclResult_t found = ncclSuccess;
    int const result   = ncclCommGetAsyncError(native(comm), &found);
    error              = found == ncclInProgress ? ncclSuccess : found;
    return result;
  }
  int abort(NcclComm comm) override { return ncclCommAbort(native(comm)); }
  int destroy(NcclComm comm) override { return ncclCommDestroy(native(comm)); }
};

}  // namespace

NcclCalls* nccl_calls() {
  static RealCalls calls;
  return &calls;
}
#else
NcclCalls* nccl_calls() {
  return nullptr;
}
#endif

}  // namespace lockstep::comm
