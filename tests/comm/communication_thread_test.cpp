// SPDX-License-Identifier: Apache-2.0
#include "comm/communication_thread.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/error.hpp"

namespace lockstep::comm {
namespace {

TEST(CommunicationThread, RunsJobsInOrderOnOneOtherThread) {
  std::vector<int> done, expected(200);
  std::iota(expected.begin(), expected.end(), 0);
  std::vector<std::thread::id> threads;
  CommunicationThread thread;
  for (int i = 0; i < 200; ++i) {
    thread.post([&, i] {
      if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // one who does not wait is early
      done.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
    if (i % 50 == 0) {  // what has been waited for is there
      thread.wait();
      EXPECT_EQ(done.size(), std::size_t(i) + 1);
    }
  }
  thread.wait();
  EXPECT_EQ(done, expected);
  EXPECT_THAT(threads, testing::Each(threads.front()));
  EXPECT_NE(threads.front(), std::this_thread::get_id());
  thread.wait();  // nothing to wait for
}

TEST(CommunicationThread, TellsTheFirstFailureAndRunsNothingAfterIt) {
  std::vector<int> done;
  CommunicationThread thread;
  thread.post([&] { done.push_back(1); });
  thread.post([] { throw Error(ExitCode::environment, "the first"); });
  thread.post([&] { done.push_back(2); });
  thread.post([] { throw Error(ExitCode::environment, "the second"); });
  for (int again = 0; again < 2; ++again) {
    try {
      thread.wait();
      FAIL() << "expected an error";
    } catch (Error const& error) {
      EXPECT_STREQ(error.what(), "the first");
    }
  }
  EXPECT_EQ(done, std::vector<int>({1}));
}

}  // namespace
}  // namespace lockstep::comm
