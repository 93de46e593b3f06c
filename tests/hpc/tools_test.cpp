// SPDX-License-Identifier: Apache-2.0
// Listens to Kokkos while everything trains: each kernel, View and region bears the project's name, kernels run on the
// instance that was given, nothing is allocated in the step loop and no fence waits for all devices.
#include <gmock/gmock.h>

#include <mutex>

#include "comm/algorithms.hpp"
#include "comm/communicator.hpp"
#include "kernels/kokkos_compat.hpp"
#include "miniapp/runtime.hpp"
#include "miniapp/trainer.hpp"

namespace lockstep {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;
namespace Tools = Kokkos::Tools::Experimental;

struct Heard {
  std::vector<std::string> foreign;  // names without the project's
  std::vector<std::string> allocated_in_step, global_fences_in_step;
  std::vector<std::uint32_t> instances;
  int kernels = 0, views = 0, regions = 0, steps = 0;
  bool in_step = false;
  std::vector<std::string> open;
};
Heard* heard = nullptr;

// Kokkos names its own kernels (fills, initialisations) and Views; the View that a fill is for stands in brackets. Its
// scratch memory is "[unlabeled]"; a View without a label has an empty one.
bool is_foreign(std::string const& name) {
  if (name.rfind("lockstep::", 0) == 0 || name == "[unlabeled]") return false;
  if (name.rfind("Kokkos::", 0) != 0) return true;
  auto const bracket = name.find('[');
  return bracket != std::string::npos && name.compare(bracket + 1, 10, "lockstep::") != 0;
}

void hear(char const* kind, char const* name, int& count) {
  ++count;
  if (is_foreign(name)) heard->foreign.push_back(std::string(kind) + " '" + name + "'");
}

void on_kernel(char const* name, std::uint32_t device, std::uint64_t*) {
  hear("kernel", name, heard->kernels);
  if (std::string(name).rfind("lockstep::", 0) == 0) heard->instances.push_back(device);
}
// Kokkos' threads each allocate their own work space.
void on_allocation(Kokkos_Profiling_SpaceHandle, char const* name, void const*, std::uint64_t) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> const lock(mutex);
  hear("View", name, heard->views);
  if (heard->in_step) heard->allocated_in_step.push_back(name);
}
void on_push(char const* name) {
  hear("region", name, heard->regions);
  heard->open.push_back(name);
  if (heard->open.back() == "lockstep::trainer::step") {
    heard->in_step = true;
    ++heard->steps;
  }
}
void on_pop() {
  if (heard->open.back() == "lockstep::trainer::step") heard->in_step = false;
  heard->open.pop_back();
}
// Before 3.5 Kokkos reports no fences; a test of the sources looks for them there.
void on_fence(char const* name, std::uint32_t, std::uint64_t*) {
  std::string const text(name);
  bool const of_all = text.find("Global Fence") != std::string::npos || text.rfind("Kokkos::fence", 0) == 0;
  if (heard->in_step && of_all) heard->global_fences_in_step.push_back(text);
}

class Listener {
 public:
  Listener() {
    heard = &m_heard;
    Tools::set_begin_parallel_for_callback(on_kernel);
    Tools::set_begin_parallel_reduce_callback(on_kernel);
    Tools::set_begin_parallel_scan_callback(on_kernel);
    Tools::set_allocate_data_callback(on_allocation);
    Tools::set_push_region_callback(on_push);
    Tools::set_pop_region_callback(on_pop);
    Tools::set_begin_fence_callback(on_fence);
  }
  ~Listener() {
    Tools::set_callbacks(m_before);
    heard = nullptr;
  }
  Heard const& operator()() const { return m_heard; }

 private:
  Heard m_heard;
  decltype(Tools::get_callbacks()) m_before = Tools::get_callbacks();
};

std::vector<Space> instances(int count) {
  std::vector<Space> all;
  for (int i = 0; i < count; ++i) all.push_back(distinct_instance());
  return all;
}

// Both reductions, every algorithm, one bucket or one a tensor, overlap, micro-batches, evaluation, a restored state.
void everything(std::vector<Space> const& spaces, Dataset const& train, Dataset const& test) {
  comm::Communicator communicator(spaces);
  auto const names = comm::algorithm_names();
  for (auto const reduction : {Reduction::exact, Reduction::plain})
    for (auto const& algorithm : names) {
      TrainerOptions options;
      options.batch        = 8;
      options.reduction    = reduction;
      options.allreduce    = algorithm;
      options.bucket_bytes = reduction == Reduction::exact && &algorithm != &names[0] ? 0 : 1;
      options.overlap      = &algorithm == &names[0];
      options.accumulate   = 2;
      Trainer trainer(communicator, Network::chapter(), train, test, options);
      while (trainer.step() < 2 * trainer.steps_per_epoch()) trainer.advance();
      trainer.count_correct();
      trainer.count_correct_alone();
      trainer.restore(trainer.parameters(), 1);
      trainer.parameters_sha256();
    }
}

class Names : public ::testing::Test {
 protected:
  TrainTest const data = load_dataset("synthetic", 20, 6);
};

TEST_F(Names, AreTheProjectsAndNoFenceWaitsForAllDevices) {
  Listener const listener;
  everything(instances(3), data.train, data.test);
  EXPECT_THAT(listener().foreign, IsEmpty());
  EXPECT_THAT(listener().global_fences_in_step, IsEmpty());
  EXPECT_GT(listener().kernels, 100);
  EXPECT_GT(listener().views, 20);
  EXPECT_GT(listener().regions, 100);
  EXPECT_GT(listener().steps, 50);
  EXPECT_THAT(listener().open, IsEmpty());
}

TEST_F(Names, NothingIsAllocatedInTheStepLoopAfterTheFirstStep) {
  comm::Communicator communicator(instances(3));
  for (bool overlap : {false, true}) {
    TrainerOptions options;
    options.batch        = 10;
    options.bucket_bytes = overlap ? 110000 : 0;
    options.overlap      = overlap;
    Trainer trainer(communicator, Network::chapter(), data.train, data.test, options);
    trainer.advance();
    Listener const listener;
    for (int i = 0; i < 4; ++i) trainer.advance();
    EXPECT_EQ(listener().steps, 4);
    EXPECT_THAT(listener().allocated_in_step, IsEmpty());
  }
}

TEST_F(Names, KernelsRunOnTheInstanceGiven) {
  auto const spaces = instances(1);
  if (Tools::device_id(spaces[0]) == Tools::device_id(Space()))
    GTEST_SKIP() << "this Kokkos has one instance of " << Space::name();
  Listener const listener;
  everything(spaces, data.train, data.test);
  EXPECT_THAT(listener().instances, Not(IsEmpty()));
  EXPECT_THAT(listener().instances, ::testing::Each(Tools::device_id(spaces[0])));
}

void launch_unnamed() {
  Buffer<float> const view("unnamed", 10);
  Kokkos::parallel_for(
      "kernel", Kokkos::RangePolicy<Space>(Space(), 0, 10), KOKKOS_LAMBDA(int i) { view(i) = 1; });
}

// The listener hears what it must not.
TEST_F(Names, AListenerFindsFaults) {
  Listener const listener;
  launch_unnamed();
  EXPECT_THAT(listener().foreign, ::testing::Contains("View 'unnamed'"));
  EXPECT_THAT(listener().foreign, ::testing::Contains("kernel 'kernel'"));
}

}  // namespace
}  // namespace lockstep
