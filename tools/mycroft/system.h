// SPDX-License-Identifier: Apache-2.0
//
// What this host has that matters to Mycroft: processes that use NCCL, libraries,
// devices. Reads below `root`, so that tests can use a tree of their own. What other
// people's processes say is hostile: sizes are bounded, nothing is loaded or run.
#ifndef MYCROFT_TOOLS_MYCROFT_SYSTEM_H_
#define MYCROFT_TOOLS_MYCROFT_SYSTEM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "userspace/decode/snapshot.h"

namespace mycroft {

struct NcclProcess {
  uint32_t pid = 0;
  std::string name;
  std::string library;  // path as the process sees it
  std::string version;  // "2.28.9"; empty: not known
  bool has_board = false;
  bool board_unreadable = false;               // its descriptors may not be read: no statement
  std::optional<std::string> profiler_plugin;  // its NCCL_PROFILER_PLUGIN; empty: not set
  std::optional<uint64_t> memlock_bytes;       // its limit; UINT64_MAX: unlimited
};

struct ProcessSurvey {
  std::vector<NcclProcess> nccl;  // at most 256
  std::vector<ProcessKey> jobs;   // with a board, or NCCL; at most 256
  uint32_t processes = 0;
  uint32_t unreadable = 0;  // of other users, or hidden
  uint32_t boards = 0;      // processes with a board
};
ProcessSurvey SurveyProcesses(const std::string& root);

struct FoundLibrary {
  std::string path;
  std::string version;  // empty: not known
};
// `stem` is "libnccl.so", ...: files STEM or STEM.* in `directories`, the real files
// behind links, each once.
std::vector<FoundLibrary> FindLibraries(const std::string& root,
                                        const std::vector<std::string>& directories,
                                        const std::string& stem);
// The dynamic linker's usual places, and those of CUDA; LD_LIBRARY_PATH first.
std::vector<std::string> LibraryDirectories(const std::string& root, const std::string& ld_path);

// "2.28.9" of "libnccl.so.2.28.9"; empty when there are fewer than two numbers.
std::string VersionOfName(const std::string& file_name);
// What follows "NCCL version " in a file, as digits and dots; looks at 512 MiB at most.
std::string NcclVersionInFile(const std::string& path);

// One line of a small file, without its end.
std::optional<std::string> ReadLine(const std::string& path);

struct PciLink {
  std::string address;  // "0000:17:00.0"
  std::string kind;     // "GPU", "NIC"
  double speed_gts = 0, max_speed_gts = 0;
  uint32_t width = 0, max_width = 0;
  int numa_node = -1;
};
// NVIDIA GPUs and InfiniBand or RoCE adapters with a link.
std::vector<PciLink> SurveyPci(const std::string& root);

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_SYSTEM_H_
