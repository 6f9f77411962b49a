// SPDX-License-Identifier: Apache-2.0
//
// For tests and benchmarks: the built libmycroft-cupti.so as the CUDA driver loads it,
// beside a stand-in libcupti.
//
// Every FakeGpu is a copy of both libraries under other names, so that each test has
// an instance with a board of its own. Instances stay loaded.
#ifndef MYCROFT_CUPTI_AGENT_TESTING_FAKE_GPU_H_
#define MYCROFT_CUPTI_AGENT_TESTING_FAKE_GPU_H_

#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>

#include "bpf/abi/gpu_board.h"
#include "cupti/agent/testing/driver_calls.h"

namespace mycroft::agent {

inline std::string CopyLibrary(const std::string& path) {
  char name[] = "/tmp/mycroft-cupti-XXXXXX";
  close(mkstemp(name));
  std::ifstream in(path, std::ios::binary);
  std::ofstream out(name, std::ios::binary | std::ios::trunc);
  out << in.rdbuf();
  return name;
}

inline std::set<std::string> GpuBoardFds() {
  std::set<std::string> found;
  DIR* dir = opendir("/proc/self/fd");
  while (dirent* e = readdir(dir)) {
    char target[256];
    const std::string path = std::string("/proc/self/fd/") + e->d_name;
    const ssize_t n = readlink(path.c_str(), target, sizeof(target));
    if (n > 0 && std::string(target, static_cast<size_t>(n)) == "/memfd:" MC_GPU_BOARD_MEMFD_NAME
                                                                " (deleted)") {
      found.insert(path);
    }
  }
  closedir(dir);
  return found;
}

class FakeGpu : public DriverCalls {
 public:
  // `agent`, `stand_in`: paths of the built libraries; empty stand_in: none is found.
  FakeGpu(const std::string& agent, const std::string& stand_in) {
    stand_in_path_ = stand_in.empty() ? "/nonexistent/libcupti.so" : CopyLibrary(stand_in);
    agent_path_ = CopyLibrary(agent);
    if (!stand_in.empty()) {
      void* handle = dlopen(stand_in_path_.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) {
        cupti_ = reinterpret_cast<StandInFn>(dlsym(handle, "mycroftStandIn"))();
      }
    }
  }
  ~FakeGpu() {
    unlink(agent_path_.c_str());
    if (cupti_ != nullptr) unlink(stand_in_path_.c_str());
  }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  // What the driver does in cuInit. False: the library could not be loaded.
  bool Init() {
    setenv("MYCROFT_CUPTI_LIBRARY", stand_in_path_.c_str(), 1);
    const std::set<std::string> before = GpuBoardFds();
    handle_ = dlopen(agent_path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) return false;
    init_ = reinterpret_cast<int (*)()>(dlsym(handle_, "InitializeInjection"));
    if (init_ == nullptr || init_() != 1) return false;
    for (const std::string& path : GpuBoardFds()) {
      if (before.count(path) == 0) board_path_ = path;
    }
    return true;
  }
  int InitAgain() { return init_(); }
  void Unload() { dlclose(handle_); }

  const std::string& board_path() const { return board_path_; }

 private:
  void* handle_ = nullptr;
  int (*init_)() = nullptr;
  std::string agent_path_, stand_in_path_, board_path_;
};

// A variable of the environment, while this lives.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~ScopedEnv() { unsetenv(name_); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  const char* name_;
};

}  // namespace mycroft::agent

#endif  // MYCROFT_CUPTI_AGENT_TESTING_FAKE_GPU_H_
