// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

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
  lockstep::Runtime const runtime;
  started = &runtime;
  if (!runtime.is_root()) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new QuietListener(runtime.process()));
  }
  return RUN_ALL_TESTS();
}
