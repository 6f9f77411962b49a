// SPDX-License-Identifier: Apache-2.0
//
// The checks of `mycroft doctor`: one per requirement, each with what is lost and
// what to do; the probes, each with what it is attached to; and the devices of the
// running jobs. They read only; nothing is loaded, attached or changed, but for what
// `probes` has attached already.
#ifndef MYCROFT_TOOLS_MYCROFT_DOCTOR_H_
#define MYCROFT_TOOLS_MYCROFT_DOCTOR_H_

#include <string>
#include <vector>

#include "userspace/align/gpu_aligner.h"
#include "userspace/base/config.h"
#include "userspace/decode/gpu_health.h"
#include "userspace/decode/kernel_probes.h"
#include "userspace/model/devices.h"

namespace mycroft {

enum class CheckStatus : uint8_t { kOk, kWarn, kFail };

struct Check {
  std::string id;  // stable, for machines
  CheckStatus status = CheckStatus::kOk;
  std::string found;
  std::string lost;  // empty when ok
  std::string fix;   // may have several lines
};

struct DoctorInput {
  std::string root;  // "" is this host; tests give a tree
  std::string bin_directory;
  std::string plugin;  // configured path or empty
  GetEnv getenv;
  KernelProbes* probes = nullptr;  // not owned; null: only what is polled
  // Where to look for NVML and the kernel log; named by the command for this host.
  GpuHealthOptions gpu_health;
};

std::vector<Check> RunChecks(const DoctorInput& input);

// What the probes say of themselves, and the devices that the running jobs have open.
struct DoctorHardware {
  std::vector<ProbeSample> probes;
  std::vector<DeviceView> devices;
};
DoctorHardware LookAtHardware(const DoctorInput& input);

// The clocks of the GPUs of the running jobs, from what their boards still hold; takes
// a few hundred milliseconds when there is a board. Empty without one.
std::vector<GpuClockState> LookAtClocks();

std::string ChecksText(const std::vector<Check>& checks, bool colour);
// Two sections, to follow the checks.
std::string HardwareText(const DoctorHardware& hardware, bool colour);
// A section of its own, after the hardware.
std::string ClocksText(const std::vector<GpuClockState>& clocks);
std::string ChecksJson(const std::vector<Check>& checks, const DoctorHardware& hardware = {},
                       const std::vector<GpuClockState>& clocks = {});

// 0: all fine, 4: something is lost or wrong, 1: the same when `strict`.
int ChecksExitCode(const std::vector<Check>& checks, bool strict,
                   const DoctorHardware& hardware = {});

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_DOCTOR_H_
