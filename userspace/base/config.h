// SPDX-License-Identifier: Apache-2.0
//
// Settings of the command, each set by the last of these that names it:
//   1. the default,
//   2. /etc/mycroft/config.yaml (or --config FILE),
//   3. $XDG_CONFIG_HOME/mycroft/config.yaml: keys under `top` only,
//   4. the environment: MYCROFT_RECORD_MAX_SIZE for record.max_size,
//   5. flags.
// A key that is not known or a value that does not parse is an error with file and
// line, never a silent fallback. There is one table of keys (ConfigKeys); the
// files, the environment, --print-config and the manual page are made from it.
//
// Config is a value; the functions are thread-safe, no exception leaves them.
#ifndef MYCROFT_USERSPACE_BASE_CONFIG_H_
#define MYCROFT_USERSPACE_BASE_CONFIG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bpf/abi/board.h"

namespace mycroft {

inline constexpr char kSystemConfigPath[] = "/etc/mycroft/config.yaml";
inline constexpr uint64_t kMaxConfigBytes = 64 << 10;

enum class ColourMode { kAuto, kAlways, kNever };

struct Config {
  uint64_t interval_ns = 100'000'000;  // sampling, 10 ms .. 1 s
  mc_level level = MC_LEVEL_UNSET;     // unset: leave the plugins as they are
  std::string plugin;                  // path; empty: next to the command
  std::string chain_plugin;            // for `run`
  bool probes = true;                  // attach the eBPF probes
  uint64_t gpu_sampling_ns = 0;        // see LiveOptions; 0: on suspicion only
  uint64_t stuck_after_ns = 1'000'000'000;
  double slow_factor = 2.0;
  uint64_t record_max_bytes = 1ull << 30;  // 0: keep all
  uint64_t record_max_age_ns = 24ull * 3600 * 1'000'000'000;
  std::string metrics_listen;  // empty: off
  bool metrics_listen_public = false;
  uint64_t top_refresh_ns = 1'000'000'000;  // 100 ms .. 1 min
  ColourMode top_colour = ColourMode::kAuto;
  bool top_ascii = false;
  std::string top_sort = "rank";
  bool top_tree = true;

  std::map<std::string, std::string> origin;  // key -> who set it; absent: default
};

struct ConfigKey {
  std::string name;   // "record.max_size"
  std::string value;  // what it takes: "DURATION", "ops|steps|kernels"
  std::string help;
  std::string default_text;
  std::string env;  // "MYCROFT_RECORD_MAX_SIZE"
};

const std::vector<ConfigKey>& ConfigKeys();

enum class ConfigScope { kSystem, kUser };  // kUser: keys under `top` only

// Sets one key from text. InvalidArgument, with `origin` in the message.
[[nodiscard]] absl::Status SetConfig(Config& config, const std::string& name,
                                     const std::string& value, const std::string& origin);

// `text` is YAML. On an error `config` keeps what was set before the bad line.
// InvalidArgument: "FILE:LINE: what; what to do".
[[nodiscard]] absl::Status LoadConfigText(Config& config, const std::string& text,
                                          const std::string& file, ConfigScope scope);

// NotFound when there is no such file (an error only for one the user named);
// PermissionDenied; InvalidArgument as above, or larger than kMaxConfigBytes.
[[nodiscard]] absl::Status LoadConfigFile(Config& config, const std::string& path,
                                          ConfigScope scope);

using GetEnv = std::function<std::optional<std::string>(const std::string&)>;
GetEnv ProcessEnvironment();

// Sets the keys whose variable is set and not empty.
[[nodiscard]] absl::Status LoadConfigEnvironment(Config& config, const GetEnv& getenv);

// All four steps before the flags. `named_file` replaces the system file and must exist.
[[nodiscard]] absl::Status LoadConfig(Config& config, const std::string& named_file,
                                      const GetEnv& getenv);

// $XDG_CONFIG_HOME/mycroft/config.yaml, or below $HOME/.config; empty without both.
std::string UserConfigPath(const GetEnv& getenv);

// YAML that LoadConfigText reads back to an equal Config, with the origin of each
// key as a comment.
std::string PrintConfig(const Config& config);

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_BASE_CONFIG_H_
