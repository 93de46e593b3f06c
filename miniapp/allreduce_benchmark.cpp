// SPDX-License-Identifier: Apache-2.0
#include "miniapp/allreduce_benchmark.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#include "comm/prove.hpp"
#include "kernels/kokkos_compat.hpp"
#include "kernels/median.hpp"

namespace lockstep {
namespace {

using comm::Communicator;
using comm::Op;

constexpr std::int64_t guard = 64;  // elements before and after every buffer

using Policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>;

KOKKOS_INLINE_FUNCTION std::uint32_t mix(std::int64_t i, std::uint32_t rank, std::uint32_t round) {
  std::uint32_t x = std::uint32_t(i) * 0x9e3779b1u ^ std::uint32_t(i >> 32) ^ rank * 0x85ebca77u ^ round * 0xc2b2ae3du;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 12;
  x *= 0x297a2d39u;
  return x ^ x >> 15;
}

// Integers below 1024: sums of up to 16384 ranks are exact in float, in any order.
template <class T>
KOKKOS_INLINE_FUNCTION T exact_input(std::int64_t i, std::uint32_t rank, std::uint32_t round) {
  return T(std::int32_t(mix(i, rank, round) >> 21) - 1024);
}

// Both signs, all mantissa bits, magnitudes from 2^-8 to 2^8: nearly every sum rounds, and differently in every order.
template <class T>
KOKKOS_INLINE_FUNCTION T rounding_input(std::int64_t i, std::uint32_t rank, std::uint32_t round) {
  std::uint32_t const x = mix(i, rank, round);
  if constexpr (std::is_integral_v<T>) {
    return T(x) * T(1000003);
  } else {
    T value = T(1) + T(x >> 9) * T(1.0 / (1 << 23)) + (sizeof(T) == 8 ? T(mix(i, rank, ~round)) * T(0x1p-54) : T(0));
    for (std::uint32_t e = x & 15; e < 8; ++e) value *= T(0.5);
    for (std::uint32_t e = x & 15; e > 8; --e) value *= T(2);
    return x & 16 ? -value : value;
  }
}

template <class T>
KOKKOS_INLINE_FUNCTION T combine(Op op, T a, T b) {
  return op == Op::sum ? T(a + b) : op == Op::max ? (a > b ? a : b) : (a < b ? a : b);
}

template <class T>
void fill(Space const& space, Buffer<T> const& buffer, bool rounding, std::uint32_t rank, std::uint32_t round) {
  Kokkos::parallel_for(
      "lockstep::allreduce::inputs", Policy(space, 0, std::int64_t(buffer.extent(0))), KOKKOS_LAMBDA(std::int64_t i) {
        buffer(i) = rounding ? rounding_input<T>(i, rank, round) : exact_input<T>(i, rank, round);
      });
}

// Elements of buffer that are not op over all ranks' exact inputs.
template <class T>
std::int64_t count_wrong(Space const& space, Buffer<T> const& buffer, Op op, std::uint32_t ranks, std::uint32_t round) {
  std::int64_t wrong = 0;
  Kokkos::parallel_reduce(
      "lockstep::allreduce::check", Policy(space, 0, std::int64_t(buffer.extent(0))),
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t & count) {
        T expected = exact_input<T>(i, 0, round);
        for (std::uint32_t r = 1; r < ranks; ++r) expected = combine(op, expected, exact_input<T>(i, r, round));
        count += !(buffer(i) == expected);
      },
      wrong);
  return wrong;
}

template <class T>
std::uint64_t hash_of(Space const& space, Buffer<T> const& buffer) {
  std::uint64_t hash = 0;
  using Bits         = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  auto const* bits   = reinterpret_cast<Bits const*>(buffer.data());
  Kokkos::parallel_reduce(
      "lockstep::allreduce::hash", Policy(space, 0, std::int64_t(buffer.extent(0))),
      KOKKOS_LAMBDA(std::int64_t i, std::uint64_t & sum) {
        std::uint64_t x =
            (std::uint64_t(bits[i]) + 0x9e3779b97f4a7c15ull * std::uint64_t(i + 1)) * 0xbf58476d1ce4e5b9ull;
        x ^= x >> 29;
        x *= 0x94d049bb133111ebull;
        sum += x ^ x >> 32;
      },
      hash);
  return hash;
}

template <class T>
T guard_value() {
  return T(-123456);
}

// One input and one output for every local device, cut to the length of the row from buffers made once.
template <class T>
struct Buffers {
  Buffers(Communicator& world, BenchmarkOptions const& options, std::int64_t most)
      : m_world(world), m_offset(options.offset) {
    std::int64_t const whole = most + 2 * guard + options.offset;
    for (auto* list : {&m_inputs, &m_outputs}) {
      if (options.registered) {
        *list = world.allocate<T>("lockstep::allreduce::buffer", whole);
      } else {
        for (int d = 0; d < world.local_size(); ++d)
          list->emplace_back(Kokkos::view_alloc(world.instance(d), Kokkos::WithoutInitializing,
                                                std::string("lockstep::allreduce::buffer")),
                             std::size_t(whole));
      }
    }
  }

  void set_length(std::int64_t count) {
    inputs.clear();
    outputs.clear();
    for (std::size_t d = 0; d < m_inputs.size(); ++d) {
      auto const range = std::make_pair(guard + m_offset, guard + m_offset + count);
      inputs.push_back(Kokkos::subview(m_inputs[d], range));
      outputs.push_back(Kokkos::subview(m_outputs[d], range));
      for (auto const& buffer : {m_inputs[d], m_outputs[d]}) {
        Space const& space = m_world.instance(int(d));
        for (auto const& zone : zones(buffer, count)) Kokkos::deep_copy(space, zone, guard_value<T>());
        fence(space, "lockstep::allreduce::guards");
      }
    }
  }

  bool guards_intact() const {
    auto const count = std::int64_t(inputs[0].extent(0));
    for (auto const* list : {&m_inputs, &m_outputs})
      for (auto const& buffer : *list)
        for (auto const& zone : zones(buffer, count)) {
          auto const host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), zone);
          for (std::size_t i = 0; i < host.extent(0); ++i)
            if (!(host(i) == guard_value<T>())) return false;
        }
    return true;
  }

  std::vector<Buffer<T>> inputs, outputs;

 private:
  std::vector<Buffer<T>> zones(Buffer<T> const& buffer, std::int64_t count) const {
    std::int64_t const begin = guard + m_offset;
    return {Kokkos::subview(buffer, std::make_pair(begin - guard, begin)),
            Kokkos::subview(buffer, std::make_pair(begin + count, begin + count + guard))};
  }

  Communicator& m_world;
  std::int64_t m_offset;
  std::vector<Buffer<T>> m_inputs, m_outputs;
};

Timing summary(std::vector<double> times, std::vector<double> const& skews, std::int64_t wrong) {
  Timing timing;
  timing.wrong = wrong;
  if (times.empty()) return timing;
  timing.measured = true;
  std::sort(times.begin(), times.end());
  auto const n       = times.size();
  auto const at_rank = [&](double share) {
    return times[std::min(n - 1, std::size_t(std::ceil(share * double(n))) - 1)];
  };
  timing.min    = times.front();
  timing.max    = times.back();
  timing.median = median(times);
  timing.p95    = at_rank(0.95);
  timing.p99    = at_rank(0.99);
  double sum = 0, squares = 0;
  for (double t : times) sum += t;
  timing.mean = sum / double(n);
  for (double t : times) squares += (t - timing.mean) * (t - timing.mean);
  timing.cv   = timing.mean > 0 ? std::sqrt(squares / double(n)) / timing.mean : 0;
  double skew = 0;
  for (double s : skews) skew += s / double(skews.size());
  timing.skew_percent = timing.mean > 0 ? 100 * skew / timing.mean : 0;
  for (double* value : {&timing.min, &timing.max, &timing.median, &timing.mean, &timing.p95, &timing.p99})
    *value *= 1e6;
  return timing;
}

double median_share(std::vector<double> shares, std::vector<double> const& times) {
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i] /= times[i];
  return median(shares);
}

template <class T>
class Sweep {
 public:
  Sweep(Communicator& world, comm::Probe const& probe, BenchmarkOptions const& options, ElementType type)
      : m_world(world),
        m_probe(probe),
        m_options(options),
        m_type(type),
        m_buffers(world, options, *std::max_element(options.sizes.begin(), options.sizes.end()) / bytes_of(type)) {}

  void run(std::int64_t bytes, Op op, std::vector<BenchmarkRow>& rows,
           std::function<void(BenchmarkRow const&)> const& report) {
    std::int64_t const count = bytes / bytes_of(m_type);
    m_buffers.set_length(count);
    struct Series {
      BenchmarkRow row;
      std::vector<double> times[2], skews[2];
      std::int64_t calls[2] = {1, 1}, wrong[2] = {0, 0};
    };
    std::vector<Series> all(m_options.algorithms.size());
    for (std::size_t a = 0; a < all.size(); ++a) {
      all[a].row.algorithm = m_options.algorithms[a];
      all[a].row.type      = m_type;
      all[a].row.op        = op;
      all[a].row.count     = count;
      all[a].row.bytes     = count * bytes_of(m_type);
    }
    auto const everywhere = m_world.everywhere(m_buffers.inputs);
    std::vector<char*> vectors;
    for (auto* vector : everywhere) vectors.push_back(reinterpret_cast<char*>(vector));
    Sampler sampler(m_world, vectors, all[0].row.bytes, [&] { refill(false); });
    bool const resample = m_probe.is_memory() && !vectors.empty() && all[0].row.bytes >= m_probe.points().front().bytes;
    // Algorithms take turns, so that they meet the same disturbances: forwards and backwards and beginning with each,
    // since what went before matters to the caches. What they are made of comes between the rounds: the machine may
    // have become faster or slower since it was probed.
    for (int sample = -m_options.warm_up; sample < m_options.samples; ++sample) {
      if (sample == 0) sampler.forget();
      if (resample) sampler.sample(sample % 3 == 0 ? Sampler::What::everything : Sampler::What::update);
      auto const round = std::size_t(sample + m_options.warm_up);
      for (std::size_t i = 0; i < all.size(); ++i) {
        auto& series = all[(round / 2 + (round % 2 == 0 ? i : all.size() - i)) % all.size()];
        for (int place = 0; place < 2; ++place) {
          if (!(place ? m_options.in_place : m_options.out_of_place)) continue;
          double skew = 0;
          double const seconds =
              time_one(series.row.algorithm, op, place == 1, series.calls[place], series.wrong[place], &skew);
          if (sample < 0) {
            // Short calls are timed many at once, so that the clock and the common start do not matter. Not where it
            // matters in whose cache the data is: only the first call finds it where its owner wrote it.
            if (bytes < 65536)
              series.calls[place] = std::clamp<std::int64_t>(std::int64_t(30e-6 / std::max(seconds, 1e-9)), 1, 200);
          } else {
            series.times[place].push_back(seconds);
            series.skews[place].push_back(skew);
          }
        }
      }
    }
    if (resample) m_probe.set(sampler.point());
    for (auto& series : all) {
      BenchmarkRow& row    = series.row;
      row.calls_per_sample = series.calls[m_options.in_place];
      row.out_of_place     = summary(series.times[0], series.skews[0], total(series.wrong[0]));
      row.in_place         = summary(series.times[1], series.skews[1], total(series.wrong[1]));
      describe(row);
      if (resample) row.share_of_updates = median_share(sampler.updates(), series.times[row.in_place.measured]);
      if (m_options.check) check_rounding(row);
      row.guards_intact = total(!m_buffers.guards_intact()) == 0;
      report(row);
      rows.push_back(row);
    }
  }

 private:
  using Sampler = comm::PointSampler;

  std::int64_t total(std::int64_t mine) const {
    std::int64_t sum = 0;
    for (auto value : m_world.gather(std::uint64_t(mine))) sum += std::int64_t(value);
    return sum;
  }

  // Inputs last: they come to the call from their owners' caches.
  void refill(bool rounding) {
    // The second kind is always the same, so that results of several runs and transports can be compared.
    m_round = rounding ? 0 : ++m_exact_rounds;
    for (int d = 0; d < m_world.local_size(); ++d) {
      auto const& space = m_world.instance(d);
      T const poison    = std::numeric_limits<T>::has_quiet_NaN ? std::numeric_limits<T>::quiet_NaN() : T(-1);
      Kokkos::deep_copy(space, m_buffers.outputs[std::size_t(d)], poison);
      fill(space, m_buffers.inputs[std::size_t(d)], rounding, std::uint32_t(m_world.rank(d)), m_round);
      fence(space, "lockstep::allreduce::refill");
    }
  }

  void call(std::string const& algorithm, Op op, bool in_place) {
    if (in_place)
      m_world.allreduce(algorithm, op, m_buffers.inputs);
    else
      m_world.allreduce(algorithm, op, m_buffers.inputs, m_buffers.outputs);
  }

  // The call that is checked is the timed one; of several at once, one more.
  double time_one(std::string const& algorithm, Op op, bool in_place, std::int64_t calls, std::int64_t& wrong,
                  double* skew) {
    refill(false);
    if (in_place && calls > 1)
      for (int d = 0; d < m_world.local_size(); ++d)  // sums of sums would overflow
        Kokkos::deep_copy(m_world.instance(d), m_buffers.inputs[std::size_t(d)], T(0));
    double const seconds = comm::time_together(
                               m_world, calls, [&] { call(algorithm, op, in_place); }, skew) /
                           double(calls);
    if (!m_options.check) return seconds;
    if (calls > 1) {
      refill(false);
      call(algorithm, op, in_place);
    }
    for (int d = 0; d < m_world.local_size(); ++d)
      wrong += count_wrong(m_world.instance(d), (in_place ? m_buffers.inputs : m_buffers.outputs)[std::size_t(d)], op,
                           std::uint32_t(m_world.size()), m_round);
    m_world.barrier();  // nobody refills what others may still read
    return seconds;
  }

  comm::ScheduleRequest request(std::int64_t count) const { return {m_world.size(), count, m_world.ranks_per_node()}; }

  void describe(BenchmarkRow& row) {
    bool const fused   = row.algorithm == "fused";
    auto const names   = comm::algorithm_names();
    row.is_schedule    = std::find(names.begin(), names.end(), row.algorithm) != names.end();
    row.bound          = m_probe.bounds(request(row.count), int(bytes_of(m_type)));
    row.has_prediction = row.is_schedule || fused;
    if (row.has_prediction) row.predicted = m_probe.predict(row.algorithm, request(row.count), int(bytes_of(m_type)));
    m_proof.reset();
    if (!row.is_schedule) return;
    m_schedule                = comm::make_schedule(row.algorithm, request(row.count));
    m_proof                   = std::make_unique<comm::Proof>(comm::prove(m_schedule, row.count));
    row.schedule_hash         = m_schedule.hash();
    row.proved                = m_proof->correct;
    row.steps                 = m_schedule.steps;
    row.chunks                = m_schedule.chunks;
    row.transfers             = std::int64_t(m_schedule.transfers.size());
    row.orders                = m_proof->orders;
    row.order_id              = m_proof->order_id;
    auto const& busiest       = m_proof->busiest;
    row.elements_sent_max     = busiest.sent;
    row.elements_received_max = busiest.received;
    row.elements_reduced_max  = busiest.reduced;
    comm::NetworkModel latencies;
    for (auto& link : latencies.link) link.alpha = 1;
    row.latencies = comm::predict(m_schedule, request(row.count), int(bytes_of(row.type)), latencies).latency;
  }

  // Inputs whose sums round. Up to 512 elements at both ends of every chunk are compared with the association that the
  // proof found, or from rank 0 up for the one pass; all elements between ranks.
  void check_rounding(BenchmarkRow& row) {
    refill(true);
    call(row.algorithm, row.op, true);
    std::vector<std::uint64_t> mine;
    bool same = true;
    for (int d = 0; d < m_world.local_size(); ++d) {
      mine.push_back(hash_of(m_world.instance(d), m_buffers.inputs[std::size_t(d)]));
      same = same && mine.back() == mine.front();
    }
    auto const hashes = m_world.gather(mine.front());
    row.result_hash   = hashes[0];
    for (auto hash : hashes) same = same && hash == hashes[0];
    row.same_bits = total(!same) == 0;

    bool const associates = row.is_schedule || row.algorithm == "fused";
    if (!associates || (row.is_schedule && !row.proved)) {
      row.rounding_wrong = -1;
      return;
    }
    std::int64_t wrong   = 0;
    std::int64_t const k = m_world.size(), chunks = row.is_schedule ? m_schedule.chunks : 1, most = 512;
    std::vector<std::vector<T>> inputs(static_cast<std::size_t>(k));
    std::vector<T const*> pointers(static_cast<std::size_t>(k));
    std::vector<T> expected;
    auto const compare = [&](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
      if (begin >= end) return;
      for (std::int64_t r = 0; r < k; ++r) {
        auto& values = inputs[std::size_t(r)];
        values.resize(std::size_t(end - begin));
        for (std::int64_t i = begin; i < end; ++i)
          values[std::size_t(i - begin)] = rounding_input<T>(i, std::uint32_t(r), m_round);
        pointers[std::size_t(r)] = values.data();
      }
      expected.resize(std::size_t(end - begin));
      for (int d = 0; d < m_world.local_size(); ++d) {
        if (row.is_schedule && row.op == Op::sum) {
          comm::evaluate(*m_proof, m_proof->result(m_world.rank(d), std::int32_t(chunk)), pointers, end - begin,
                         expected.data());
        } else {
          expected = inputs[0];
          for (std::int64_t r = 1; r < k; ++r)
            for (std::size_t i = 0; i < expected.size(); ++i)
              expected[i] = combine(row.op, expected[i], inputs[std::size_t(r)][i]);
        }
        auto const host = Kokkos::create_mirror_view_and_copy(
            Kokkos::HostSpace(),
            Buffer<T>(Kokkos::subview(m_buffers.inputs[std::size_t(d)], std::make_pair(begin, end))));
        for (std::size_t i = 0; i < expected.size(); ++i)
          wrong += std::memcmp(&host.data()[i], &expected[i], sizeof(T)) != 0;
      }
    };
    for (std::int64_t c = 0; c < chunks; ++c) {
      auto const range          = comm::chunk_range(row.count, chunks, c);
      std::int64_t const middle = std::min(range.end, range.begin + most);
      compare(c, range.begin, middle);
      compare(c, std::max(middle, range.end - most), range.end);
    }
    row.rounding_wrong = total(wrong);
  }

  Communicator& m_world;
  comm::Probe m_probe;
  BenchmarkOptions const& m_options;
  ElementType m_type;
  Buffers<T> m_buffers;
  std::uint32_t m_round = 0, m_exact_rounds = 0;
  comm::Schedule m_schedule;
  std::unique_ptr<comm::Proof> m_proof;
};

}  // namespace

char const* name(ElementType type) {
  return type == ElementType::float32 ? "float" : type == ElementType::float64 ? "double" : "int64";
}

std::vector<BenchmarkRow> run_benchmark(Communicator& world, comm::Probe const& probe, BenchmarkOptions const& options,
                                        std::function<void(BenchmarkRow const&)> const& report) {
  std::vector<BenchmarkRow> rows;
  auto const sweep = [&](auto element, ElementType type) {
    Sweep<decltype(element)> sweep(world, probe, options, type);
    for (Op op : options.operations)
      for (std::int64_t bytes : options.sizes) sweep.run(bytes, op, rows, report);
  };
  for (ElementType type : options.types) switch (type) {
      case ElementType::float32:
        sweep(float(), type);
        break;
      case ElementType::float64:
        sweep(double(), type);
        break;
      case ElementType::int64:
        sweep(std::int64_t(), type);
        break;
    }
  return rows;
}

}  // namespace lockstep
