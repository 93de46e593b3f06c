// SPDX-License-Identifier: Apache-2.0
#include "comm/communication_thread.hpp"

#include "kernels/kokkos_compat.hpp"

namespace lockstep::comm {

CommunicationThread::CommunicationThread() : m_thread([this] { work(); }) {}

CommunicationThread::~CommunicationThread() {
  {
    std::lock_guard<std::mutex> const lock(m_mutex);
    m_stop = true;
  }
  m_posted.notify_one();
  m_thread.join();
}

void CommunicationThread::post(std::function<void()> job) {
  {
    std::lock_guard<std::mutex> const lock(m_mutex);
    m_jobs.push_back(std::move(job));
  }
  m_posted.notify_one();
}

void CommunicationThread::wait() {
  std::unique_lock<std::mutex> lock(m_mutex);
  m_finished.wait(lock, [&] { return m_failure || (m_jobs.empty() && !m_busy); });
  if (m_failure) std::rethrow_exception(m_failure);
}

void CommunicationThread::work() {
  on_side_thread = true;
  std::unique_lock<std::mutex> lock(m_mutex);
  while (true) {
    m_posted.wait(lock, [&] { return m_stop || !m_jobs.empty(); });
    if (m_stop) return;
    auto const job = std::move(m_jobs.front());
    m_jobs.pop_front();
    m_busy = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      job();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    m_failure = failure;
    m_busy    = false;
    m_finished.notify_one();
    if (failure) return;
  }
}

}  // namespace lockstep::comm
