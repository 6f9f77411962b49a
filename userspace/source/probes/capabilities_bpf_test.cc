// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/capabilities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "userspace/source/probes/probe_set.h"
#include "userspace/source/probes/testing/bpf_machine.h"

namespace mycroft {
namespace {

// What the child found, as its exit status; it cannot take its rights back.
int InChild(int (*body)()) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(CapabilitiesBpfTest, OnlyWhatIsNeededIsKept) {
  MYCROFT_REQUIRE_BPF();
  EXPECT_EQ(InChild([] {
              const std::vector<std::string> before = EffectiveCapabilities();
              if (!DropCapabilities(CapabilitiesWhileRunning(false)).ok()) return 1;
              const std::vector<std::string> allowed = {"cap_dac_read_search", "cap_sys_ptrace",
                                                        "cap_perfmon", "cap_bpf"};
              for (const std::string& name : EffectiveCapabilities()) {
                if (std::find(allowed.begin(), allowed.end(), name) == allowed.end()) return 2;
                // None was gained.
                if (std::find(before.begin(), before.end(), name) == before.end()) return 3;
              }
              if (socket(AF_INET, SOCK_RAW, 255) >= 0) return 4;  // needs CAP_NET_RAW
              return 0;
            }),
            0);
}

TEST(CapabilitiesBpfTest, NoneAtAll) {
  EXPECT_EQ(InChild([] {
              if (!DropCapabilities({}).ok()) return 1;
              if (!EffectiveCapabilities().empty()) return 2;
              return DropCapabilities({}).ok() ? 0 : 3;  // again
            }),
            0);
}

TEST(CapabilitiesBpfTest, ProbesWorkAfterDropping) {
  MYCROFT_REQUIRE_BPF();
  EXPECT_EQ(InChild([] {
              auto set = ProbeSet::Create({});
              if (!set.ok()) return 1;
              const bool admin = (*set)->AttachesByPerfEvent();
              if (!DropCapabilities(CapabilitiesWhileRunning(admin)).ok()) return 1;
              // Loads and attaches a new program, and reads a map.
              if (!(*set)->CalibrateUprobe().has_value()) return 2;
              return (*set)->Rows().empty() ? 3 : 0;
            }),
            0);
}

TEST(CapabilitiesBpfTest, WithoutRightsEveryRowSaysWhy) {
  MYCROFT_REQUIRE_BPF();
  EXPECT_EQ(InChild([] {
              if (!DropCapabilities({}).ok()) return 1;
              auto set = ProbeSet::Create({});
              if (!set.ok()) return 2;
              for (const ProbeRow& row : (*set)->Rows()) {
                if (row.method == ProbeMethod::kPoll) continue;
                if (row.problem.find("not permitted") == std::string::npos) return 3;
                if (row.lost.empty()) return 4;
              }
              return (*set)->Complete().ok() ? 5 : 0;
            }),
            0);
}

}  // namespace
}  // namespace mycroft
