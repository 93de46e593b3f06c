// SPDX-License-Identifier: Apache-2.0
// One thread that makes calls of a communicator while the thread that made it computes. Calls of the two take turns:
// who posts a job leaves the communicator alone until it has waited for the last one.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep::comm {

class CommunicationThread {
 public:
  CommunicationThread();
  // Drops jobs that have not begun, and ends with the one that has.
  ~CommunicationThread();
  CommunicationThread(CommunicationThread const&)            = delete;
  CommunicationThread& operator=(CommunicationThread const&) = delete;

  // Jobs run in the order of posting.
  void post(std::function<void()> job);
  // Until all of them are done: what they wrote is then seen here. Throws what the first failing job threw; no job runs
  // after that one.
  void wait();

 private:
  void work();

  std::mutex m_mutex;
  std::condition_variable m_posted, m_finished;
  std::deque<std::function<void()>> m_jobs;
  bool m_busy = false;
  std::exception_ptr m_failure;
  bool m_stop = false;
  std::thread m_thread;  // the last member: it uses the others
};

}  // namespace lockstep::comm
