// SPDX-License-Identifier: Apache-2.0
// The collectives on their own.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "comm/algorithms.hpp"
#include "comm/prove.hpp"
#include "comm/transports/reduce.hpp"
#include "verify/check.hpp"
#include "verify/compare.hpp"
#include "verify/transfer.hpp"

namespace lockstep::verify {
namespace {

constexpr std::int64_t guard = 9;  // elements before and after a buffer

template <class T>
char const* type_name() {
  return std::is_same<T, float>::value ? "float" : std::is_same<T, double>::value ? "double" : "int64";
}

// Small whole numbers: their sums are exact in every type and order, and differ if one is missing, doubled or in the
// wrong place.
template <class T>
T element(int rank, std::int64_t i) {
  return T((rank + 1) * ((i * 37 + 11) % 101) - 50 * (rank % 3));
}

template <class T>
T expected(comm::Op op, int ranks, std::int64_t i) {
  T result = element<T>(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    T const value = element<T>(rank, i);
    result        = op == comm::Op::sum   ? result + value
                    : op == comm::Op::max ? std::max(result, value)
                                          : std::min(result, value);
  }
  return result;
}

// Sums of thirds and sevenths round: every order gives other bits, and still all ranks must hold the same.
float rounded_element(int rank, std::int64_t i) {
  return 1.0f / float(3 + 4 * rank + i % 7);
}

template <class T, class Element>
std::vector<Buffer<T>> guarded(comm::Communicator& world, std::int64_t count, std::vector<Buffer<T>>& whole,
                               Element const& value) {
  std::vector<Buffer<T>> inner;
  whole.clear();
  for (int local = 0; local < world.local_size(); ++local) {
    std::vector<T> values(std::size_t(count + 2 * guard), T(-77));
    for (std::int64_t i = 0; i < count; ++i) values[std::size_t(guard + i)] = value(world.rank(local), i);
    whole.push_back(to_device(world.instance(local), values));
    inner.push_back(part(whole.back(), guard, guard + count));
  }
  return inner;
}

template <class T>
void call(Context const& context, comm::Communicator& world, std::string const& algorithm, comm::Op op,
          std::vector<Buffer<T>> buffers) {
  if constexpr (std::is_same<T, std::int64_t>::value)
    if (context.plant().in_call) context.plant().in_call(buffers);
  world.allreduce(algorithm, op, buffers);
}

template <class T>
Outcome check_exact(Context const& context, comm::Communicator& world, std::string const& algorithm, comm::Op op,
                    std::int64_t count) {
  std::vector<Buffer<T>> whole;
  auto const buffers = guarded<T>(world, count, whole, element<T>);
  call(context, world, algorithm, op, buffers);
  std::string const what = algorithm + ", k = " + std::to_string(world.size()) + ", " + std::to_string(count) + " " +
                           type_name<T>() + ", " + comm::name_of(op) + ", rank ";
  for (int local = 0; local < world.local_size(); ++local) {
    std::string const where    = what + std::to_string(world.rank(local)) + ": ";
    std::vector<T> const found = to_host(world.instance(local), whole[std::size_t(local)]);
    for (std::int64_t i = 0; i < count; ++i) {
      T const want = expected<T>(op, world.size(), i);
      if (found[std::size_t(guard + i)] != want)
        return Outcome::failure(where + "element " + std::to_string(i) + " is " +
                                std::to_string(found[std::size_t(guard + i)]) + ", expected " + std::to_string(want));
    }
    for (std::int64_t i = 0; i < std::int64_t(found.size()); ++i)
      if ((i < guard || i >= guard + count) && found[std::size_t(i)] != T(-77))
        return Outcome::failure(where + "element " + std::to_string(i - guard) +
                                " lies outside the buffer and was written");
  }
  return Outcome::success("");
}

// Bits of the sums that this process holds are added to `bits`.
Outcome check_same_bits(Context const& context, comm::Communicator& world, std::string const& algorithm,
                        std::int64_t count, std::vector<float>& bits) {
  std::vector<Buffer<float>> whole;
  auto const buffers = guarded<float>(world, count, whole, rounded_element);
  call(context, world, algorithm, comm::Op::sum, buffers);
  std::vector<float> const first = to_host(world.instance(0), buffers[0]);
  bits.insert(bits.end(), first.begin(), first.end());
  for (int local = 1; local < world.local_size(); ++local) {
    std::vector<float> const found = to_host(world.instance(local), buffers[std::size_t(local)]);
    for (std::size_t i = 0; i < found.size(); ++i)
      if (ulp_distance(found[i], first[i]) != 0)
        return Outcome::failure(algorithm + ", k = " + std::to_string(world.size()) + ": rank " +
                                std::to_string(world.rank(local)) + " holds other bits in element " +
                                std::to_string(i) + " than rank " + std::to_string(world.rank(0)));
  }
  return Outcome::success("");
}

std::vector<std::int64_t> lengths(Context const& context, int k) {
  std::vector<std::int64_t> result{0, 1, k - 1, k, k + 1, 2 * k + 1, 3 * k, 1000 + k};
  if (context.scope() == Scope::full) {
    for (std::int64_t n = 2; n < 3 * k; ++n) result.push_back(n);
    result.push_back(70000 + k);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

}  // namespace

Outcome check_schedules(Context const& context) {
  bool const few = context.scope() == Scope::fault;
  std::vector<std::string> const algorithms =
      few ? std::vector<std::string>{context.plant().algorithm} : comm::algorithm_names();
  std::int64_t proofs = 0;
  for (std::string const& algorithm : algorithms)
    for (int k = few ? 3 : 1; k <= (few ? 3 : 16); ++k)
      for (std::int64_t const elements : {std::int64_t(1), std::int64_t(k) + 1, std::int64_t(129069)}) {
        comm::Schedule schedule = comm::make_schedule(algorithm, {k, elements, 0});
        if (context.plant().in_schedule) context.plant().in_schedule(schedule);
        comm::Proof const proof = comm::prove(schedule, elements);
        std::string const what  = algorithm + ", k = " + std::to_string(k) + ": ";
        if (!proof.correct) return Outcome::failure(what + proof.fault);
        if (!proof.equal_bits) return Outcome::failure(what + "ranks end with sums in different orders");
        ++proofs;
      }
  return Outcome::success(std::to_string(proofs) + " schedules of " + std::to_string(algorithms.size()) +
                          " algorithms");
}

Outcome check_collectives(Context const& context) {
  std::int64_t calls = 0;
  for (WorldShape const& shape : context.worlds()) {
    comm::Communicator world = context.world(shape);
    for (std::string const& algorithm : context.algorithms(world)) {
      Outcome first = Outcome::success("");
      std::vector<float> bits;
      for (std::int64_t const count : lengths(context, world.size()))
        for (auto const& outcome : {check_exact<std::int64_t>(context, world, algorithm, comm::Op::sum, count),
                                    check_exact<std::int64_t>(context, world, algorithm, comm::Op::max, count),
                                    check_exact<float>(context, world, algorithm, comm::Op::sum, count),
                                    check_exact<double>(context, world, algorithm, comm::Op::min, count),
                                    check_same_bits(context, world, algorithm, count, bits)}) {
          if (first.passed) first = outcome;
          ++calls;
        }
      int const other = first_that_differs(world, bits);
      if (first.passed && other > 0)
        first = Outcome::failure(algorithm + ", k = " + std::to_string(world.size()) + ": process " +
                                 std::to_string(other) + " holds other bits than process 0");
      first = together(world, first);
      if (!first.passed) return first;
    }
  }
  return Outcome::success(std::to_string(calls) + " calls, every algorithm");
}

namespace {

struct Moved {
  std::int64_t bytes = 0, messages = 0;
};

// What the schedule has the ranks [begin, end) send.
Moved predict(comm::Schedule const& schedule, std::int64_t count, std::int64_t item, int begin, int end) {
  Moved moved;
  for (comm::Transfer const& transfer : schedule.transfers) {
    std::int64_t const elements = comm::element_range(schedule, transfer, count).size();
    if (transfer.is_local() || elements == 0 || transfer.source < begin || transfer.source >= end) continue;
    moved.bytes += elements * item;
    ++moved.messages;
  }
  return moved;
}

// One call: what this process's ranks sent against the schedule; and the schedule, for the algorithms whose total has a
// simple formula, 2 (k - 1) n elements, against that.
Outcome compare_traffic(Context const& context, comm::Communicator& world, std::string const& algorithm,
                        std::int64_t count) {
  constexpr std::int64_t item   = sizeof(std::int64_t);
  int const k                   = world.size();
  comm::Schedule const schedule = comm::make_schedule(algorithm, {k, count, world.ranks_per_node()});
  Moved const wanted            = predict(schedule, count, item, world.rank(0), world.rank(0) + world.local_size());

  std::vector<Buffer<std::int64_t>> whole;
  auto const buffers         = guarded<std::int64_t>(world, count, whole, element<std::int64_t>);
  comm::Traffic const before = world.traffic();
  call(context, world, algorithm, comm::Op::sum, buffers);
  comm::Traffic const after = world.traffic();
  Moved const found{after.bytes_sent - before.bytes_sent, after.messages_sent - before.messages_sent};

  std::string const what = algorithm + ", k = " + std::to_string(k) + ", " + std::to_string(count) + " int64: ";
  if (found.bytes != wanted.bytes || found.messages != wanted.messages)
    return Outcome::failure(what + std::to_string(found.bytes) + " bytes in " + std::to_string(found.messages) +
                            " messages; the schedule has " + std::to_string(wanted.bytes) + " in " +
                            std::to_string(wanted.messages));
  bool const simple        = algorithm == "naive" || algorithm == "tree" || algorithm == "ring";
  std::int64_t const total = predict(schedule, count, item, 0, k).bytes, formula = 2 * (k - 1) * count * item;
  if (simple && total != formula)
    return Outcome::failure(what + std::to_string(total) + " bytes in the schedule; 2 (k - 1) n elements are " +
                            std::to_string(formula));
  return Outcome::success("");
}

}  // namespace

Outcome check_traffic(Context const& context) {
  std::vector<std::string> const scheduled = comm::algorithm_names();
  std::int64_t calls                       = 0;
  for (WorldShape const& shape : context.worlds()) {
    comm::Communicator world = context.world(shape);
    Outcome first            = Outcome::success("");
    for (std::string const& algorithm : context.algorithms(world)) {
      if (std::count(scheduled.begin(), scheduled.end(), algorithm) == 0) continue;  // nothing to predict from
      for (std::int64_t const count : lengths(context, world.size())) {
        Outcome const outcome = compare_traffic(context, world, algorithm, count);
        if (first.passed) first = outcome;
        ++calls;
      }
    }
    first = together(world, first);
    if (!first.passed) return first;
  }
  return Outcome::success(std::to_string(calls) + " calls: bytes and messages as predicted");
}

}  // namespace lockstep::verify
