// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "tools/mycroft/exit_codes.h"
#include "tools/mycroft/verbs.h"
#include "userspace/base/install.h"
#include "userspace/base/log.h"

namespace mycroft {
namespace {

const char* LevelName(mc_level level) {
  switch (level) {
    case MC_LEVEL_UNSET:
      return "";
    case MC_LEVEL_OPS:
      return "ops";
    case MC_LEVEL_STEPS:
      return "steps";
    case MC_LEVEL_KERNELS:
      return "kernels";
  }
  return "";
}

}  // namespace

int RunCommand(const Config& config, const Options& options) {
  const std::string bin = ExecutableDirectory();
  const InstalledFile plugin = FindPlugin(config.plugin, bin);
  const InstalledFile cupti = FindCuptiLibrary(bin);
  if (!plugin.exists) {
    LogError(plugin.path + " is not there; name the plugin with --plugin or MYCROFT_PLUGIN");
    return kExitFailure;
  }
  std::string chain = config.chain_plugin;
  const char* taken = ::getenv("NCCL_PROFILER_PLUGIN");
  if (taken != nullptr && *taken != '\0' && plugin.path != taken) {
    if (!options.chain) {
      LogError("NCCL_PROFILER_PLUGIN is set to '" + std::string(taken) +
               "' already, and NCCL loads only one profiler plugin. Use --chain, which hands it to "
               "MYCROFT_CHAIN_PLUGIN so that Mycroft's plugin loads it, or unset it");
      return kExitUsage;
    }
    chain = taken;
  }
  if (::setenv("NCCL_PROFILER_PLUGIN", plugin.path.c_str(), 1) != 0 ||
      (!chain.empty() && ::setenv("MYCROFT_CHAIN_PLUGIN", chain.c_str(), 1) != 0) ||
      (config.level != MC_LEVEL_UNSET &&
       ::setenv("MYCROFT_LEVEL", LevelName(config.level), 1) != 0)) {
    LogError(std::string("cannot set the environment: ") + std::strerror(errno));
    return kExitFailure;
  }
  LogDetail("NCCL_PROFILER_PLUGIN=" + plugin.path);
  if (!chain.empty()) LogDetail("MYCROFT_CHAIN_PLUGIN=" + chain);
  if (!cupti.exists) {
    LogDetail(std::string(kCuptiFile) + " is not installed: GPU kernels are not seen");
  } else if (const char* injected = ::getenv("CUDA_INJECTION64_PATH");
             injected != nullptr && *injected != '\0' && cupti.path != injected) {
    LogWarning("CUDA_INJECTION64_PATH is set to '" + std::string(injected) +
               "' already and stays so: GPU kernels are not seen");
  } else {
    ::setenv("CUDA_INJECTION64_PATH", cupti.path.c_str(), 1);
    LogDetail("CUDA_INJECTION64_PATH=" + cupti.path);
  }
  std::vector<char*> arguments;
  for (const std::string& argument : options.command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int error = errno;
  LogError("cannot start '" + options.command[0] + "': " + std::strerror(error));
  return kExitFailure;
}

}  // namespace mycroft
