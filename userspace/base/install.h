// SPDX-License-Identifier: Apache-2.0
//
// Where the parts of Mycroft are on this machine, and which lines of environment
// make a job load them. Reads the file system; thread-safe.
#ifndef MYCROFT_USERSPACE_BASE_INSTALL_H_
#define MYCROFT_USERSPACE_BASE_INSTALL_H_

#include <array>
#include <string>

namespace mycroft {

inline constexpr char kPluginFile[] = "libnccl-profiler-mycroft.so";
inline constexpr char kCuptiFile[] = "libmycroft-cupti.so";

struct InstalledFile {
  std::string path;     // absolute; where it is, or where it should be
  bool exists = false;  // a readable regular file
};

// The directory of the running executable; empty when /proc is not there.
std::string ExecutableDirectory();

// `configured` (MYCROFT_PLUGIN or the config key) if not empty, else ../lib or
// ../lib/mycroft, relative to `bin_directory`, which holds in the build and in the install tree.
InstalledFile FindPlugin(const std::string& configured, const std::string& bin_directory);
InstalledFile FindCuptiLibrary(const std::string& bin_directory);

// The two lines of environment that a job needs, "NAME=value" each.
std::array<std::string, 2> EnvironmentLines(const InstalledFile& plugin,
                                            const InstalledFile& cupti);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_BASE_INSTALL_H_
