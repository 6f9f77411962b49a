// SPDX-License-Identifier: Apache-2.0
#include <cctype>

#include "tools/mycroft/table.h"
#include "userspace/base/text.h"

namespace mycroft {
namespace {

// Text between macros: a line that begins with a dot or a quote would be one.
std::string Roff(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((i == 0 || text[i - 1] == '\n') && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";  // a minus that can be copied, not a hyphen
    } else if (c == '~') {
      out += "\\(ti";
    } else if (c == '^') {
      out += "\\(ha";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Title(const std::string& name) {
  std::string upper = name;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return ".TH " + Roff(upper) + " 1 \"\" \"mycroft " MYCROFT_VERSION "\" \"Mycroft\"\n";
}

std::string Value(const OptionRow& row) {
  return row.choices().empty() ? "\\fI" + Roff(row.value) + "\\fR"
                               : "\\fB" + JoinNames(row.choices(), "\\fR|\\fB") + "\\fR";
}

std::string OptionList(const std::vector<OptionRow>& rows) {
  std::string out;
  for (const OptionRow& row : rows) {
    out += ".TP\n";
    if (row.positional()) {
      out += "\\fI" + Roff(row.names[0]) + "\\fR";
    } else {
      std::vector<std::string> names;
      for (const std::string& name : row.names) names.push_back("\\fB" + Roff(name) + "\\fR");
      out += JoinNames(names) + (row.value.empty() ? "" : " " + Value(row));
    }
    out += "\n" + Roff(row.help.empty() ? "see above" : row.help) + "\n";
  }
  return out;
}

std::string Synopsis(const VerbTable& verb) {
  std::string out = ".B mycroft " + Roff(verb.doc.name) + "\n[\\fIOPTIONS\\fR]";
  for (const OptionRow& row : verb.options) {
    if (row.positional()) continue;
    if (row.required) out += " \\fB" + Roff(row.names.back()) + "\\fR " + Value(row);
  }
  if (verb.doc.name == "run")
    return out + " [\\fB\\-\\-\\fR] \\fICOMMAND\\fR [\\fIARGUMENT\\fR ...]\n";
  for (const OptionRow& row : verb.options) {
    if (!row.positional()) continue;
    const std::string name =
        (row.choices().empty() ? "\\fI" + Roff(row.names[0]) + "\\fR" : Value(row)) +
        (row.many ? " ..." : "");
    out += row.required ? " " + name : " [" + name + "]";
  }
  return out + "\n";
}

std::string ExitStatus() {
  std::string out = ".SH EXIT STATUS\n";
  for (const auto& [code, what] : ExitCodeDocs()) {
    out += ".TP\n.B " + std::to_string(code) + "\n" + Roff(what) + "\n";
  }
  return out;
}

std::string VerbPage(const CommandTable& table, const VerbTable& verb) {
  const std::string name = "mycroft-" + verb.doc.name;
  std::string out = Title(name);
  out += ".SH NAME\n" + Roff(name) + " \\- " + Roff(verb.doc.summary) + "\n";
  out += ".SH SYNOPSIS\n" + Synopsis(verb);
  out += ".SH DESCRIPTION\n" + Roff(verb.doc.description) + "\n";
  if (!verb.options.empty()) out += ".SH OPTIONS\n" + OptionList(verb.options);
  out += ".SS Options of every verb\n" + OptionList(table.global);
  if (!verb.doc.examples.empty()) {
    out += ".SH EXAMPLES\n";
    for (const auto& [command, what] : verb.doc.examples) {
      out += ".TP\n.B " + Roff(command) + "\n" + Roff(what) + "\n";
    }
  }
  out += ExitStatus();
  return out + ".SH SEE ALSO\n.BR mycroft (1)\n";
}

std::string MainPage(const CommandTable& table) {
  std::string out = Title("mycroft");
  out += ".SH NAME\nmycroft \\- find out whom a stuck or slow training job waits for\n";
  out += ".SH SYNOPSIS\n.B mycroft\n[\\fIOPTIONS\\fR] \\fIVERB\\fR ...\n";
  out += ".SH DESCRIPTION\n" + Roff(table.summary) +
         Roff(
             ": a GPU, a network adapter, a PCIe path, a host or the application. It reads the "
             "progress boards of processes that were started with its NCCL profiler plugin.") +
         "\n.SH VERBS\n";
  for (const VerbTable& verb : table.verbs) {
    out += ".TP\n.BR mycroft\\-" + Roff(verb.doc.name) + " (1)\n" + Roff(verb.doc.summary) + "\n";
  }
  out += ".SH OPTIONS\n" + OptionList(table.global);
  out += ExitStatus();
  out += ".SH CONFIGURATION\n" +
         Roff(
             "Later ones win: the defaults, the configuration file, the user's file (keys under "
             "\"top\" only), the environment, the options. A key or a value that is not known is "
             "an error.") +
         "\n";
  for (const ConfigKey& key : ConfigKeys()) {
    out += ".TP\n.B " + Roff(key.name) + " \\fR(\\fB" + Roff(key.env) + "\\fR)\n" + Roff(key.help) +
           Roff(". Takes " + key.value +
                "; default: " + (key.default_text.empty() ? "empty" : key.default_text) + ".") +
           "\n";
  }
  out +=
      ".SH ENVIRONMENT\n"
      ".TP\n.B NO_COLOR\nNo colours when it is set and not empty.\n"
      ".TP\n.B NCCL_PROFILER_PLUGIN\nWhat NCCL loads; set by \\fBmycroft run\\fR.\n"
      ".TP\n.B MYCROFT_LEVEL\n" +
      Roff("Read by the plugin in the job, too: ops, steps or kernels.") + "\n" +
      ".TP\n.B MYCROFT_CHAIN_PLUGIN\n" +
      Roff("A second profiler plugin, which Mycroft's plugin loads.") + "\n" +
      ".TP\n.B MYCROFT_NVML\n" +
      Roff("A library to load in place of libnvidia-ml.so.1, for the health of the GPUs, or "
           "\"off\".") +
      "\n";
  out +=
      ".SH FILES\n.TP\n.I /etc/mycroft/config.yaml\nThe configuration.\n"
      ".TP\n.I $XDG_CONFIG_HOME/mycroft/config.yaml\nPreferences of \\fBmycroft top\\fR.\n";
  out += ".SH SEE ALSO\n";
  for (size_t i = 0; i < table.verbs.size(); ++i) {
    out += ".BR mycroft\\-" + Roff(table.verbs[i].doc.name) + " (1)" +
           (i + 1 < table.verbs.size() ? "," : "") + "\n";
  }
  return out;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> ManualPages(const CommandTable& table) {
  std::vector<std::pair<std::string, std::string>> pages;
  pages.emplace_back("mycroft.1", MainPage(table));
  for (const VerbTable& verb : table.verbs) {
    pages.emplace_back("mycroft-" + verb.doc.name + ".1", VerbPage(table, verb));
  }
  return pages;
}

}  // namespace mycroft
