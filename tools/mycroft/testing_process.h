// SPDX-License-Identifier: Apache-2.0
//
// For tests: runs a program, gives back what it wrote and how it ended.
#ifndef MYCROFT_TOOLS_MYCROFT_TESTING_PROCESS_H_
#define MYCROFT_TOOLS_MYCROFT_TESTING_PROCESS_H_

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace mycroft {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string out, err;
};

class ChildProcess {
 public:
  // Variables are set on top of a clean environment; an empty value unsets.
  ChildProcess(const std::vector<std::string>& arguments,
               const std::map<std::string, std::string>& environment = {},
               const std::string& directory = "") {
    int out[2], err[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) ::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      const int null = ::open("/dev/null", O_RDONLY);
      ::dup2(null, 0);
      ::dup2(out[1], 1);
      ::dup2(err[1], 2);
      for (const char* name : {"NCCL_PROFILER_PLUGIN", "CUDA_INJECTION64_PATH", "NO_COLOR",
                               "MYCROFT_LEVEL", "MYCROFT_PLUGIN", "MYCROFT_CHAIN_PLUGIN"}) {
        ::unsetenv(name);
      }
      ::setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
      for (const auto& [name, value] : environment) {
        value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
      }
      if (!directory.empty() && ::chdir(directory.c_str()) != 0) ::_exit(126);
      std::vector<char*> argv;
      for (const std::string& argument : arguments) {
        argv.push_back(const_cast<char*>(argument.c_str()));
      }
      argv.push_back(nullptr);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(out[1]);
    ::close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~ChildProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      Wait();
    }
  }
  pid_t pid() const { return pid_; }

  // Reads until the text has come on standard error (or output); false at the end.
  bool ReadUntil(const std::string& text) {
    while (result_.err.find(text) == std::string::npos &&
           result_.out.find(text) == std::string::npos) {
      if (!ReadSome()) return false;
    }
    return true;
  }

  ProcessResult Wait() {
    while (ReadSome()) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result_;
  }

 private:
  bool ReadSome() {
    struct pollfd fds[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
    if (out_ < 0 && err_ < 0) return false;
    if (::poll(fds, 2, 30000) <= 0) return false;
    for (int i = 0; i < 2; ++i) {
      if (fds[i].revents == 0) continue;
      char buffer[65536];
      const ssize_t n = ::read(fds[i].fd, buffer, sizeof buffer);
      if (n > 0) (i == 0 ? result_.out : result_.err).append(buffer, static_cast<size_t>(n));
      if (n <= 0) {
        ::close(fds[i].fd);
        (i == 0 ? out_ : err_) = -1;
      }
    }
    return true;
  }

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  ProcessResult result_;
};

inline ProcessResult RunProcess(const std::vector<std::string>& arguments,
                                const std::map<std::string, std::string>& environment = {},
                                const std::string& directory = "") {
  return ChildProcess(arguments, environment, directory).Wait();
}

// A folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    char name[] = "/tmp/mycroft-test-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = path_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  void Link(const std::string& name, const std::string& target) const {
    const std::filesystem::path path = path_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::filesystem::create_symlink(target, path);
  }

 private:
  std::string path_;
};

inline std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_TESTING_PROCESS_H_
