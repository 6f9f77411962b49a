// SPDX-License-Identifier: Apache-2.0
//
// Against the libcupti of the toolkit that is installed here; no GPU is needed: it
// loads and answers without a driver. Without one, skipped.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <time.h>

#include "cupti/agent/cupti_library.h"
#include "cupti/agent/layout.h"
#include "cupti/agent/testing/fake_gpu.h"
#include "userspace/decode/gpu_board_decode.h"
#include "userspace/source/gpu_board_map.h"

namespace mycroft::agent {
namespace {

#define SKIP_WITHOUT_LIBCUPTI()                                                       \
  if (std::string(MYCROFT_LIBCUPTI).empty() || access(MYCROFT_LIBCUPTI, R_OK) != 0) { \
    GTEST_SKIP() << "no libcupti on this machine: install a CUDA toolkit";            \
  }

TEST(RealCupti, HasEveryFunction) {
  SKIP_WITHOUT_LIBCUPTI();
  void* handle = dlopen(MYCROFT_LIBCUPTI, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << dlerror();
#define MYCROFT_EXPECT(name) EXPECT_NE(dlsym(handle, #name), nullptr) << #name;
  MYCROFT_CUPTI_FUNCTIONS(MYCROFT_EXPECT, MYCROFT_EXPECT)
  uint32_t version = 0;
  auto* get_version =
      reinterpret_cast<decltype(&cuptiGetVersion)>(dlsym(handle, "cuptiGetVersion"));
  ASSERT_NE(get_version, nullptr);
  EXPECT_EQ(get_version(&version), CUPTI_SUCCESS);
  EXPECT_NE(FindLayout(version), nullptr) << "records of version " << version << " are not known";
}

// In a child: what a real libcupti starts, it does not stop.
TEST(RealCupti, TheBuiltLibraryLoadsIt) {
  SKIP_WITHOUT_LIBCUPTI();
  if (MYCROFT_SANITIZED[0] != '\0') GTEST_SKIP() << "libcupti is not made for sanitizers";
  int out[2];
  ASSERT_EQ(pipe(out), 0);
  const pid_t child = fork();
  if (child == 0) {
    setenv("MYCROFT_CUPTI_LIBRARY", MYCROFT_LIBCUPTI, 1);
    void* handle = dlopen(MYCROFT_CUPTI_PATH, RTLD_NOW | RTLD_LOCAL);
    auto* init = handle != nullptr
                     ? reinterpret_cast<int (*)()>(dlsym(handle, "InitializeInjection"))
                     : nullptr;
    if (init == nullptr || init() != 1) _exit(1);
    uint32_t answer[3] = {};
    for (const std::string& path : GpuBoardFds()) {
      auto board = GpuBoardMap::Open(path);
      if (!board.ok()) _exit(2);
      const GpuSnapshot s = ReadGpuBoard(*board, 1, 0);
      answer[0] = s.state;
      answer[1] = s.cupti_version;
      answer[2] = s.layout_known ? 1 : 0;
    }
    _exit(write(out[1], answer, sizeof(answer)) == sizeof(answer) ? 42 : 3);
  }
  close(out[1]);
  uint32_t answer[3] = {};
  const ssize_t n = read(out[0], answer, sizeof(answer));
  close(out[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  ASSERT_EQ(WEXITSTATUS(status), 42);
  ASSERT_EQ(n, static_cast<ssize_t>(sizeof(answer)));
  // Without a driver CUPTI may refuse to be subscribed to; it must have been found whole.
  EXPECT_NE(answer[0], static_cast<uint32_t>(MC_GPU_NO_LIBRARY));
  EXPECT_NE(answer[0], static_cast<uint32_t>(MC_GPU_NO_SYMBOL));
  EXPECT_GE(answer[1], 19u);
  EXPECT_EQ(answer[2], 1u);
  std::cout << "state " << answer[0] << ", CUPTI version " << answer[1] << "\n";
}

}  // namespace
}  // namespace mycroft::agent
