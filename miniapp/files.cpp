// SPDX-License-Identifier: Apache-2.0
#include "miniapp/files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kernels/error.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

void check_call(bool ok, std::string const& path, char const* call) {
  LOCKSTEP_THROW_IF(!ok, ExitCode::environment, path + ": " + call + " failed: " + std::strerror(errno));
}

class Descriptor {
 public:
  Descriptor(std::string const& path, int flags) : m_path(path), m_fd(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    check_call(m_fd >= 0, path, "open");
  }
  ~Descriptor() {
    if (m_fd >= 0) ::close(m_fd);
  }
  Descriptor(Descriptor const&)            = delete;
  Descriptor& operator=(Descriptor const&) = delete;

  void write(std::string const& bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
      ssize_t const count = ::write(m_fd, bytes.data() + done, bytes.size() - done);
      if (count < 0 && errno == EINTR) continue;
      check_call(count >= 0, m_path, "write");
      done += std::size_t(count);
    }
  }
  void sync() { check_call(::fsync(m_fd) == 0, m_path, "fsync"); }
  void close() {
    int const fd = m_fd;
    m_fd         = -1;
    check_call(::close(fd) == 0, m_path, "close");
  }

 private:
  std::string m_path;
  int m_fd;
};

// A file of this process's own beside the one that it will become; goes unless it becomes that.
class Temporary {
 public:
  explicit Temporary(std::string const& path)
      : m_name(path + '.' + std::to_string(getpid()) + ".tmp"), m_file(fresh(m_name), O_WRONLY | O_CREAT | O_EXCL) {}
  ~Temporary() {
    if (!m_name.empty()) ::unlink(m_name.c_str());
  }
  void write(std::string const& bytes) { m_file.write(bytes); }
  void become(std::string const& path, bool lasting) {
    if (lasting) m_file.sync();  // before the rename, or a crash could leave the new name with nothing behind it
    m_file.close();
    check_call(::rename(m_name.c_str(), path.c_str()) == 0, path, "rename");
    m_name.clear();
  }

 private:
  // Only a process of the same number, which is gone, can have left it.
  static std::string const& fresh(std::string const& name) {
    ::unlink(name.c_str());
    return name;
  }
  std::string m_name;
  Descriptor m_file;
};

bool is_special(std::string const& path) {
  std::error_code ignored;
  auto const status = fs::status(path, ignored);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

}  // namespace

void check_targets(std::vector<Target> const& targets, bool force) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    auto const& [option, path] = targets[i];
    if (path.empty()) continue;
    std::string const given = option + ' ' + path + ": ";
    std::error_code ignored;
    for (std::size_t other = 0; other < i; ++other)
      LOCKSTEP_THROW_IF(fs::weakly_canonical(path, ignored) == fs::weakly_canonical(targets[other].path, ignored),
                        ExitCode::usage, given + "given for " + targets[other].option + " too; expected another file");
    if (path == "-" || is_special(path)) continue;
    LOCKSTEP_THROW_IF(fs::is_directory(path, ignored), ExitCode::usage, given + "found a folder, expected a file");
    LOCKSTEP_THROW_IF(fs::is_symlink(path, ignored) && !fs::exists(path, ignored), ExitCode::usage,
                      given + "found a link to nothing, expected a file, or nothing");
    LOCKSTEP_THROW_IF(!force && fs::exists(path, ignored), ExitCode::usage,
                      given + "the file exists; give another name, or --force to replace it");
    try {
      Temporary const writable(path);
    } catch (Error const& error) {
      std::string const why = error.what();  // of a name that nobody gave
      throw Error(ExitCode::usage, given + "cannot be written" + why.substr(why.rfind(": ")));
    }
  }
}

void write_file(std::string const& path, std::string const& bytes, bool lasting) {
  if (is_special(path)) {
    Descriptor file(path, O_WRONLY);
    file.write(bytes);
    return file.close();
  }
  std::error_code ignored;
  // What a link names, not the link.
  std::string const target = fs::is_symlink(path, ignored) ? fs::canonical(path, ignored).string() : path;
  Temporary file(target);
  file.write(bytes);
  file.become(target, lasting);
  if (!lasting) return;
  std::string const folder = fs::path(target).parent_path().string();
  Descriptor(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY).sync();  // makes the rename itself last
}

}  // namespace lockstep
