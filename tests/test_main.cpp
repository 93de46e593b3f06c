// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
static void __lsan_disable() {}
static void __lsan_enable() {}
static int __lsan_do_recoverable_leak_check() {
  return 0;
}
#endif

#include "tests/test_runtime.hpp"

namespace {

// Under a launcher only rank 0 reports what went well; every rank reports what failed.
class QuietListener : public testing::EmptyTestEventListener {
 public:
  explicit QuietListener(int process) : m_process(process) {}
  void OnTestPartResult(testing::TestPartResult const& result) override {
    if (result.failed())
      std::fprintf(stderr, "[process %d] %s:%d: %s\n", m_process, result.file_name(), result.line_number(),
                   result.message());
  }

 private:
  int m_process;
};

lockstep::Runtime const* started = nullptr;

}  // namespace

lockstep::Runtime const& lockstep::test_runtime() {
  return *started;
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  // MPI loads and unloads plugins that leave memory behind; what stays loaded is suppressed by name, before it ends.
  __lsan_disable();
  lockstep::Runtime const runtime;
  __lsan_enable();
  started = &runtime;
  if (!runtime.is_root()) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new QuietListener(runtime.process()));
  }
  int const failed = RUN_ALL_TESTS();
  return __lsan_do_recoverable_leak_check() ? 1 : failed;
}
