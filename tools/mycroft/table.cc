// SPDX-License-Identifier: Apache-2.0
#include "tools/mycroft/table.h"

#include <CLI/App.hpp>
#include <filesystem>
#include <fstream>

#include "tools/mycroft/exit_codes.h"
#include "tools/mycroft/verbs.h"
#include "userspace/base/log.h"
#include "userspace/base/text.h"

namespace mycroft {
namespace {

std::vector<OptionRow> Rows(const CLI::App& app) {
  std::vector<OptionRow> rows;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    OptionRow row;
    for (const std::string& name : option->get_snames()) row.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) row.names.push_back("--" + name);
    if (row.names.empty()) row.names.push_back(option->get_name());
    row.help = option->get_description();
    row.required = option->get_required();
    row.many = option->get_expected_max() > 1 && row.positional();
    if (option->get_type_size() > 0) row.value = option->get_type_name();
    // A check adds its description after a colon; the table wants the bare type.
    row.value = row.value.substr(0, row.value.find(':'));
    if (row.positional() && row.value == "TEXT") row.value = row.names[0];
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::vector<std::string> OptionRow::choices() const {
  std::vector<std::string> out;
  if (value.find('|') == std::string::npos) return out;
  size_t begin = 0;
  while (begin <= value.size()) {
    const size_t end = std::min(value.find('|', begin), value.size());
    out.push_back(value.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

CommandTable MakeTable(const CLI::App& app) {
  CommandTable table;
  table.summary = app.get_description();
  table.global = Rows(app);
  for (const VerbDoc& doc : VerbDocs()) {
    if (doc.hidden) continue;
    for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
      if (verb->get_name() == doc.name) table.verbs.push_back({doc, Rows(*verb)});
    }
  }
  return table;
}

int RunCompletion(const CLI::App& app, const Options& options) {
  return PrintOut(CompletionScript(MakeTable(app), options.shell)) ? kExitOk : kExitFailure;
}

int RunMan(const CLI::App& app, const Options& options) {
  std::error_code error;
  std::filesystem::create_directories(options.man_directory, error);
  for (const auto& [name, text] : ManualPages(MakeTable(app))) {
    std::ofstream file(options.man_directory + "/" + name, std::ios::trunc);
    file << text;
    file.close();
    if (!file) {
      LogError("cannot write " + options.man_directory + "/" + name);
      return kExitFailure;
    }
  }
  return kExitOk;
}

}  // namespace mycroft
