// SPDX-License-Identifier: Apache-2.0
#include "userspace/base/config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>

#include "absl/status/statusor.h"
#include "userspace/base/text.h"
#include "userspace/base/units.h"

namespace mycroft {
namespace {

// Sets the field from text, and prints it so that Set reads it back.
struct KeyRule {
  ConfigKey key;
  std::function<absl::Status(Config&, const std::string&)> set;
  std::function<std::string(const Config&)> print;
};

absl::Status SetDuration(uint64_t& field, const std::string& text, uint64_t least, uint64_t most) {
  const absl::StatusOr<uint64_t> value = ParseDuration(text);
  if (!value.ok()) return value.status();
  if (*value < least || *value > most) {
    return absl::InvalidArgumentError("'" + text + "' is out of range: " + ExactDuration(least) +
                                      " to " + ExactDuration(most));
  }
  field = *value;
  return absl::OkStatus();
}

absl::Status SetAtLeast(uint64_t& field, const absl::StatusOr<uint64_t>& value, uint64_t least,
                        const std::string& least_text) {
  if (!value.ok()) return value.status();
  if (*value != 0 && *value < least) {
    return absl::InvalidArgumentError("must be 0 (keep all) or at least " + least_text);
  }
  field = *value;
  return absl::OkStatus();
}

absl::Status SetBool(bool& field, const std::string& text) {
  static const std::set<std::string> kTrue = {"true", "yes", "on", "1"};
  static const std::set<std::string> kFalse = {"false", "no", "off", "0"};
  if (kTrue.count(text) + kFalse.count(text) == 0) {
    return absl::InvalidArgumentError(QuotedText(text) + " is neither true nor false");
  }
  field = kTrue.count(text) != 0;
  return absl::OkStatus();
}

template <typename T>
using Choices = std::vector<std::pair<std::string, T>>;

template <typename T>
absl::Status SetChoice(T& field, const std::string& text, const Choices<T>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) {
    if (name == text) {
      field = value;
      return absl::OkStatus();
    }
    names.push_back(name);
  }
  return absl::InvalidArgumentError(QuotedText(text) + " is not one of " + JoinNames(names));
}

template <typename T>
std::string PrintChoice(T value, const Choices<T>& choices) {
  for (const auto& [name, choice] : choices) {
    if (choice == value) return name;
  }
  return "";
}

const Choices<mc_level> kLevels = {{"ops", MC_LEVEL_OPS},
                                   {"steps", MC_LEVEL_STEPS},
                                   {"kernels", MC_LEVEL_KERNELS},
                                   {"", MC_LEVEL_UNSET}};
const Choices<ColourMode> kColourModes = {
    {"auto", ColourMode::kAuto}, {"always", ColourMode::kAlways}, {"never", ColourMode::kNever}};
const Choices<std::string> kSorts = {{"rank", "rank"}, {"age", "age"},   {"wait", "wait"},
                                     {"rate", "rate"}, {"host", "host"}, {"progress", "progress"}};

absl::Status SetFactor(double& field, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= 1.1 && value <= 100)) {
    return absl::InvalidArgumentError(QuotedText(text) + " is not a number from 1.1 to 100");
  }
  field = value;
  return absl::OkStatus();
}

std::string PrintFactor(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.17g", value);
  return buffer;
}

absl::Status SetText(std::string& field, const std::string& text) {
  if (text.size() > 4096 || std::any_of(text.begin(), text.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
      })) {
    return absl::InvalidArgumentError("longer than 4096 bytes, or with control characters");
  }
  field = text;
  return absl::OkStatus();
}

std::string PrintBool(bool value) { return value ? "true" : "false"; }

const std::vector<KeyRule>& Rules() {
  static const std::vector<KeyRule> rules = [] {
    std::vector<KeyRule> r = {
        {{"interval", "DURATION", "how often the boards are sampled, 10ms to 1s"},
         [](Config& c, const std::string& t) {
           return SetDuration(c.interval_ns, t, 10'000'000, 1'000'000'000);
         },
         [](const Config& c) { return ExactDuration(c.interval_ns); }},
        {{"level", "ops|steps|kernels", "what is asked of NCCL; empty: as the job was started"},
         [](Config& c, const std::string& t) { return SetChoice(c.level, t, kLevels); },
         [](const Config& c) { return PrintChoice(c.level, kLevels); }},
        {{"probes", "true|false", "attach the eBPF probes; see mycroft doctor"},
         [](Config& c, const std::string& t) { return SetBool(c.probes, t); },
         [](const Config& c) { return PrintBool(c.probes); }},
        {{"gpu_sampling", "DURATION",
          "ask GPU after GPU for 2s of activity records in this time; 0: on suspicion only"},
         [](Config& c, const std::string& t) {
           return SetAtLeast(c.gpu_sampling_ns, ParseDuration(t), 10'000'000'000, "10s");
         },
         [](const Config& c) { return ExactDuration(c.gpu_sampling_ns); }},
        {{"plugin", "PATH", "libnccl-profiler-mycroft.so; empty: next to the command"},
         [](Config& c, const std::string& t) { return SetText(c.plugin, t); },
         [](const Config& c) { return c.plugin; }},
        {{"chain_plugin", "PATH", "a second NCCL profiler plugin that the first one loads"},
         [](Config& c, const std::string& t) { return SetText(c.chain_plugin, t); },
         [](const Config& c) { return c.chain_plugin; }},
        {{"detect.stuck_after", "DURATION", "no progress for at least this long is stuck"},
         [](Config& c, const std::string& t) {
           return SetDuration(c.stuck_after_ns, t, 100'000'000, 3600'000'000'000);
         },
         [](const Config& c) { return ExactDuration(c.stuck_after_ns); }},
        {{"detect.slow_factor", "NUMBER", "this many times the baseline is slow"},
         [](Config& c, const std::string& t) { return SetFactor(c.slow_factor, t); },
         [](const Config& c) { return PrintFactor(c.slow_factor); }},
        {{"record.max_size", "SIZE", "the oldest part of a larger recording is dropped; 0: keep"},
         [](Config& c, const std::string& t) {
           return SetAtLeast(c.record_max_bytes, ParseBytes(t), 1 << 20, "1MiB");
         },
         [](const Config& c) { return ExactBytes(c.record_max_bytes); }},
        {{"record.max_age", "DURATION", "older parts of a recording are dropped; 0: keep"},
         [](Config& c, const std::string& t) {
           return SetAtLeast(c.record_max_age_ns, ParseDuration(t), 1'000'000'000, "1s");
         },
         [](const Config& c) { return ExactDuration(c.record_max_age_ns); }},
        {{"metrics.listen", "ADDRESS:PORT", "serve Prometheus metrics there; empty: off"},
         [](Config& c, const std::string& t) { return SetText(c.metrics_listen, t); },
         [](const Config& c) { return c.metrics_listen; }},
        {{"metrics.listen_public", "true|false", "allow an address that is not loopback"},
         [](Config& c, const std::string& t) { return SetBool(c.metrics_listen_public, t); },
         [](const Config& c) { return PrintBool(c.metrics_listen_public); }},
        {{"top.refresh", "DURATION", "how often the screen is drawn, 100ms to 1m"},
         [](Config& c, const std::string& t) {
           return SetDuration(c.top_refresh_ns, t, 100'000'000, 60'000'000'000);
         },
         [](const Config& c) { return ExactDuration(c.top_refresh_ns); }},
        {{"top.color", "auto|always|never", "auto: on a terminal, unless NO_COLOR is set"},
         [](Config& c, const std::string& t) { return SetChoice(c.top_colour, t, kColourModes); },
         [](const Config& c) { return PrintChoice(c.top_colour, kColourModes); }},
        {{"top.ascii", "true|false", "draw with ASCII characters only"},
         [](Config& c, const std::string& t) { return SetBool(c.top_ascii, t); },
         [](const Config& c) { return PrintBool(c.top_ascii); }},
        {{"top.sort", "rank|age|wait|rate|host|progress", "order of the ranks"},
         [](Config& c, const std::string& t) { return SetChoice(c.top_sort, t, kSorts); },
         [](const Config& c) { return c.top_sort; }},
        {{"top.tree", "true|false", "ranks below their communicator, or one list"},
         [](Config& c, const std::string& t) { return SetBool(c.top_tree, t); },
         [](const Config& c) { return PrintBool(c.top_tree); }},
    };
    const Config defaults;
    for (KeyRule& rule : r) {
      rule.key.default_text = rule.print(defaults);
      rule.key.env = "MYCROFT_" + rule.key.name;
      for (char& c : rule.key.env) c = c == '.' ? '_' : static_cast<char>(std::toupper(c));
    }
    return r;
  }();
  return rules;
}

const KeyRule* FindRule(const std::string& name) {
  for (const KeyRule& rule : Rules()) {
    if (rule.key.name == name) return &rule;
  }
  return nullptr;
}

std::vector<std::string> KeyNames(ConfigScope scope) {
  std::vector<std::string> names;
  for (const KeyRule& rule : Rules()) {
    if (scope == ConfigScope::kSystem || rule.key.name.rfind("top.", 0) == 0) {
      names.push_back(rule.key.name);
    }
  }
  return names;
}

bool IsSection(const std::string& name) {
  for (const KeyRule& rule : Rules()) {
    if (rule.key.name.rfind(name + ".", 0) == 0) return true;
  }
  return false;
}

std::string Where(const std::string& file, const YAML::Mark& mark) {
  return mark.line >= 0 ? file + ":" + std::to_string(mark.line + 1) : file;
}

absl::Status UnknownKey(const std::string& where, const std::string& key, ConfigScope scope) {
  std::string text = where + ": unknown key " + QuotedText(key);
  const std::vector<std::string> names = KeyNames(scope);
  if (scope == ConfigScope::kUser && (FindRule(key) != nullptr || IsSection(key))) {
    return absl::InvalidArgumentError(where + ": key " + QuotedText(key) +
                                      " is not a preference of top; put it into " +
                                      kSystemConfigPath);
  }
  const std::string closest = ClosestName(key, names);
  if (!closest.empty()) text += ", did you mean '" + closest + "'?";
  return absl::InvalidArgumentError(text + " Known keys: " + JoinNames(names));
}

// Looks over the events before any tree is built: a tree with aliases can be
// huge or contain itself, and a configuration needs neither them nor depth.
class Guard : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) throw YAML::ParserException(mark, "more than one document; keep one");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { Check(mark, anchor); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Check(mark, 1); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                const std::string&) override {
    Check(mark, anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Enter(mark, anchor);
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Enter(mark, anchor);
  }
  void OnMapEnd() override { --depth_; }

 private:
  static void Check(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) throw YAML::ParserException(mark, "anchors and aliases are not supported");
  }
  void Enter(const YAML::Mark& mark, YAML::anchor_t anchor) {
    Check(mark, anchor);
    if (++depth_ > 4) throw YAML::ParserException(mark, "nested too deep");
  }
  int depth_ = 0;
  int documents_ = 0;
};

// `prefix` is empty or "section.".
absl::Status LoadMap(Config& config, const YAML::Node& map, const std::string& prefix,
                     const std::string& file, ConfigScope scope) {
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const std::string where = Where(file, entry.first.Mark());
    if (!entry.first.IsScalar()) {
      return absl::InvalidArgumentError(where + ": a key must be a plain word");
    }
    const std::string key = prefix + entry.first.Scalar();
    if (!seen.insert(key).second) {
      return absl::InvalidArgumentError(where + ": key " + QuotedText(key) +
                                        " is there twice; remove one");
    }
    const KeyRule* rule = FindRule(key);
    const bool allowed = scope == ConfigScope::kSystem || key == "top" || prefix == "top.";
    if (prefix.empty() && allowed && IsSection(key)) {
      if (entry.second.IsNull()) continue;
      if (!entry.second.IsMap()) {
        return absl::InvalidArgumentError(where + ": " + QuotedText(key) +
                                          " holds keys: write them below it, indented");
      }
      const absl::Status status = LoadMap(config, entry.second, key + ".", file, scope);
      if (!status.ok()) return status;
      continue;
    }
    if (rule == nullptr || !allowed) return UnknownKey(where, key, scope);
    if (!entry.second.IsScalar()) {
      return absl::InvalidArgumentError(where + ": " + QuotedText(key) +
                                        " takes one value: " + rule->key.value);
    }
    const absl::Status status = SetConfig(config, key, entry.second.Scalar(), where);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<ConfigKey>& ConfigKeys() {
  static const std::vector<ConfigKey> keys = [] {
    std::vector<ConfigKey> k;
    for (const KeyRule& rule : Rules()) k.push_back(rule.key);
    return k;
  }();
  return keys;
}

absl::Status SetConfig(Config& config, const std::string& name, const std::string& value,
                       const std::string& origin) {
  const KeyRule* rule = FindRule(name);
  if (rule == nullptr) return UnknownKey(origin, name, ConfigScope::kSystem);
  const absl::Status status = rule->set(config, value);
  if (!status.ok()) {
    return absl::InvalidArgumentError(origin + ": " + name + ": " + std::string(status.message()));
  }
  config.origin[name] = origin;
  return absl::OkStatus();
}

absl::Status LoadConfigText(Config& config, const std::string& text, const std::string& file,
                            ConfigScope scope) {
  if (text.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(file + ": larger than " + ExactBytes(kMaxConfigBytes) +
                                      "; is it the right file?");
  }
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    Guard guard;
    while (parser.HandleNextDocument(guard)) {
    }
    const YAML::Node document = YAML::Load(text);
    if (!document.IsDefined() || document.IsNull()) return absl::OkStatus();
    if (!document.IsMap()) {
      return absl::InvalidArgumentError(Where(file, document.Mark()) +
                                        ": expected lines of the form 'key: value'");
    }
    return LoadMap(config, document, "", file, scope);
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(Where(file, e.mark) + ": not valid YAML: " + e.msg);
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(file + ": not valid YAML: " + e.what());
  }
}

absl::Status LoadConfigFile(Config& config, const std::string& path, ConfigScope scope) {
  // O_NONBLOCK: a fifo must not hang the command.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const std::string text = path + ": " + std::strerror(errno);
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError(text);
    return absl::PermissionDeniedError(text + "; make it readable or name another with --config");
  }
  std::string text;
  struct stat info {};
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  ssize_t n = 0;
  char buffer[4096];
  int error = 0;
  while (regular && text.size() <= kMaxConfigBytes) {
    n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  ::close(fd);
  if (!regular) return absl::InvalidArgumentError(path + ": not a regular file");
  if (error != 0) return absl::InvalidArgumentError(path + ": " + std::strerror(error));
  return LoadConfigText(config, text, path, scope);
}

GetEnv ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

absl::Status LoadConfigEnvironment(Config& config, const GetEnv& getenv) {
  for (const KeyRule& rule : Rules()) {
    const std::optional<std::string> value = getenv(rule.key.env);
    if (!value || value->empty()) continue;
    const absl::Status status =
        SetConfig(config, rule.key.name, *value, "environment variable " + rule.key.env);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string UserConfigPath(const GetEnv& getenv) {
  const std::optional<std::string> xdg = getenv("XDG_CONFIG_HOME");
  // The base directory specification says to ignore a relative path.
  if (xdg && !xdg->empty() && (*xdg)[0] == '/') return *xdg + "/mycroft/config.yaml";
  const std::optional<std::string> home = getenv("HOME");
  if (home && !home->empty()) return *home + "/.config/mycroft/config.yaml";
  return "";
}

absl::Status LoadConfig(Config& config, const std::string& named_file, const GetEnv& getenv) {
  const std::string system_file = named_file.empty() ? kSystemConfigPath : named_file;
  absl::Status status = LoadConfigFile(config, system_file, ConfigScope::kSystem);
  if (!status.ok() && !(absl::IsNotFound(status) && named_file.empty())) return status;
  const std::string user_file = UserConfigPath(getenv);
  if (!user_file.empty()) {
    status = LoadConfigFile(config, user_file, ConfigScope::kUser);
    if (!status.ok() && !absl::IsNotFound(status)) return status;
  }
  return LoadConfigEnvironment(config, getenv);
}

std::string PrintConfig(const Config& config) {
  std::string out, section;
  for (const KeyRule& rule : Rules()) {
    const size_t dot = rule.key.name.find('.');
    const std::string in = dot == std::string::npos ? "" : rule.key.name.substr(0, dot);
    const std::string name =
        dot == std::string::npos ? rule.key.name : rule.key.name.substr(dot + 1);
    if (in != section) out += in + ":\n";
    section = in;
    std::string value = rule.print(config);
    // Only words of ours stay bare: free text may read as null or as a comment. A
    // single-quoted YAML scalar knows one escape: the doubled quote.
    const bool free_text = rule.key.value == "PATH" || rule.key.value == "ADDRESS:PORT";
    const bool plain = !value.empty() && !free_text;
    if (!plain) {
      std::string quoted = "'";
      for (char c : value) quoted += c == '\'' ? std::string("''") : std::string(1, c);
      value = quoted + "'";
    }
    const auto origin = config.origin.find(rule.key.name);
    std::string from = origin == config.origin.end() ? "default" : origin->second;
    for (char& c : from) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    out += (in.empty() ? "" : "  ") + name + ": " + value + "  # " + from + "\n";
  }
  return out;
}

}  // namespace mycroft
