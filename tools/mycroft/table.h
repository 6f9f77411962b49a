// SPDX-License-Identifier: Apache-2.0
//
// The option table as plain values, read off the parser: what the manual pages and
// the completions are made from.
#ifndef MYCROFT_TOOLS_MYCROFT_TABLE_H_
#define MYCROFT_TOOLS_MYCROFT_TABLE_H_

#include <string>
#include <vector>

#include "tools/mycroft/options.h"

namespace mycroft {

struct OptionRow {
  std::vector<std::string> names;  // "-p", "--pid"; one name without dashes: positional
  std::string value;               // "PID", "a|b|c"; empty: a flag
  std::string help;
  bool required = false;
  bool many = false;
  bool positional() const { return names[0][0] != '-'; }
  // Of a value "a|b|c", else empty.
  std::vector<std::string> choices() const;
  bool is_file() const { return value == "FILE" || value == "PATH"; }
};

struct VerbTable {
  VerbDoc doc;
  std::vector<OptionRow> options;
};

struct CommandTable {
  std::string summary;
  std::vector<OptionRow> global;
  std::vector<VerbTable> verbs;  // without the hidden ones
};

CommandTable MakeTable(const CLI::App& app);

// Text for `source <(...)` or a file; `shell` is bash, zsh or fish.
std::string CompletionScript(const CommandTable& table, const std::string& shell);

// {name, roff text}: mycroft.1, mycroft-run.1, ...
std::vector<std::pair<std::string, std::string>> ManualPages(const CommandTable& table);

}  // namespace mycroft

#endif  // MYCROFT_TOOLS_MYCROFT_TABLE_H_
