// SPDX-License-Identifier: Apache-2.0
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/mycroft/build_info.h"
#include "tools/mycroft/exit_codes.h"
#include "tools/mycroft/system.h"
#include "tools/mycroft/verbs.h"
#include "userspace/base/config.h"
#include "userspace/base/text.h"
#include "userspace/report/text.h"

namespace mycroft {
namespace {

std::vector<std::string> Versions(const std::vector<FoundLibrary>& libraries) {
  std::set<std::string> versions;
  for (const FoundLibrary& library : libraries) {
    versions.insert((library.version.empty() ? "unknown" : library.version) + " (" +
                    PrintableText(library.path) + ")");
  }
  return {versions.begin(), versions.end()};
}

}  // namespace

int RunVersion(const Config&, const Options& options) {
  const GetEnv getenv = ProcessEnvironment();
  const std::vector<std::string> directories =
      LibraryDirectories("", getenv("LD_LIBRARY_PATH").value_or(""));
  std::vector<FoundLibrary> nccl = FindLibraries("", directories, "libnccl.so");
  for (const NcclProcess& process : SurveyProcesses("").nccl) {
    nccl.push_back({process.library, process.version});
  }
  const std::vector<std::string> nccl_versions = Versions(nccl);
  const std::vector<std::string> cupti = Versions(FindLibraries("", directories, "libcupti.so"));
  const std::vector<std::string> nvml = Versions(FindLibraries("", directories, "libnvidia-ml.so"));
  struct utsname names {};
  ::uname(&names);
  std::error_code error;
  const bool btf = std::filesystem::exists("/sys/kernel/btf/vmlinux", error);
  std::string text;
  if (options.json) {
    const nlohmann::ordered_json json = {{"schema_version", 1},
                                         {"version", MYCROFT_VERSION},
                                         {"revision", BuildRevision()},
                                         {"kernel", names.release},
                                         {"machine", names.machine},
                                         {"btf", btf},
                                         {"nccl", nccl_versions},
                                         {"cupti", cupti},
                                         {"nvml", nvml}};
    text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  } else {
    const auto list = [](const std::vector<std::string>& found) {
      return found.empty() ? std::string("not found") : JoinNames(found);
    };
    text = "mycroft " MYCROFT_VERSION " (" + std::string(BuildRevision()) + ")\n" + "kernel  " +
           names.release + " " + names.machine + ", BTF " + (btf ? "yes" : "no") + "\n" +
           "NCCL    " + list(nccl_versions) + "\n" + "CUPTI   " + list(cupti) + "\n" + "NVML    " +
           list(nvml) + "\n";
  }
  return PrintOut(text) ? kExitOk : kExitFailure;
}

}  // namespace mycroft
