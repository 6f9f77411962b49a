// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tools/mycroft/table.h"
#include "userspace/base/text.h"

namespace mycroft {
namespace {

std::string OptionNames(const std::vector<OptionRow>& rows) {
  std::vector<std::string> names;
  for (const OptionRow& row : rows) {
    if (row.positional()) continue;
    names.insert(names.end(), row.names.begin(), row.names.end());
  }
  return JoinNames(names, " ");
}

// Of all options that take a value, those with choices and those that name a file.
std::string BashValueCases(const std::vector<OptionRow>& rows) {
  std::string out;
  for (const OptionRow& row : rows) {
    if (row.positional() || row.value.empty()) continue;
    out += "    " + JoinNames(row.names, "|") + ") ";
    if (!row.choices().empty()) {
      out += "COMPREPLY=($(compgen -W '" + JoinNames(row.choices(), " ") + "' -- \"$cur\"))";
    } else if (row.is_file()) {
      out += "COMPREPLY=($(compgen -f -- \"$cur\"))";
    } else {
      out += "COMPREPLY=()";
    }
    out += "; return ;;\n";
  }
  return out;
}

std::string Bash(const CommandTable& table) {
  std::vector<std::string> verbs;
  for (const VerbTable& verb : table.verbs) verbs.push_back(verb.doc.name);
  std::string out =
      "# bash completion for mycroft\n"
      "_mycroft() {\n"
      "  local cur prev verb word i\n"
      "  cur=${COMP_WORDS[COMP_CWORD]}\n"
      "  prev=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  verb=\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    word=${COMP_WORDS[i]}\n"
      "    case $word in\n"
      "    --config) ((i++)) ;;\n"
      "    -*) ;;\n"
      "    *) verb=$word; break ;;\n"
      "    esac\n"
      "  done\n"
      "  case $prev in\n" +
      BashValueCases(table.global) +
      "  esac\n"
      "  case $verb in\n"
      "  '') COMPREPLY=($(compgen -W '" +
      JoinNames(verbs, " ") + " " + OptionNames(table.global) + "' -- \"$cur\")) ;;\n";
  for (const VerbTable& verb : table.verbs) {
    out += "  " + verb.doc.name + ")\n";
    const std::string cases = BashValueCases(verb.options);
    if (!cases.empty()) out += "    case $prev in\n" + cases + "    esac\n";
    if (verb.doc.name == "run") {
      out +=
          "    for word in \"${COMP_WORDS[@]:i+1:COMP_CWORD-i-1}\"; do\n"
          "      if [[ $word == -- || $word != -* ]]; then\n"
          "        COMPREPLY=($(compgen -c -f -- \"$cur\")); return\n"
          "      fi\n"
          "    done\n";
    }
    std::string words = OptionNames(verb.options) + " " + OptionNames(table.global);
    std::string more = "compgen -f -- \"$cur\"";
    if (verb.doc.name == "run") more = "compgen -c -- \"$cur\"";
    for (const OptionRow& row : verb.options) {
      if (row.positional() && !row.choices().empty()) {
        more = "compgen -W '" + JoinNames(row.choices(), " ") + "' -- \"$cur\"";
      }
    }
    const bool positional = std::any_of(verb.options.begin(), verb.options.end(),
                                        [](const OptionRow& row) { return row.positional(); });
    out += "    if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W '" + words + "' -- \"$cur\")); " +
           (positional ? "else COMPREPLY=($(" + more + ")); " : "") + "fi ;;\n";
  }
  out +=
      "  esac\n"
      "}\n"
      "complete -o filenames -F _mycroft mycroft\n";
  return out;
}

std::string ZshQuote(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else if (c == '[' || c == ']' || c == ':') {
      out += std::string("\\") + c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string ZshAction(const OptionRow& row) {
  if (!row.choices().empty()) return "(" + JoinNames(row.choices(), " ") + ")";
  return row.is_file() ? "_files" : " ";
}

std::string ZshArguments(const std::vector<OptionRow>& rows, const std::string& indent) {
  std::string out;
  for (const OptionRow& row : rows) {
    if (row.positional()) continue;
    for (const std::string& name : row.names) {
      out += " \\\n" + indent + "'" + name + "[" + ZshQuote(row.help) + "]";
      if (!row.value.empty()) out += ":" + ZshQuote(row.value) + ":" + ZshAction(row);
      out += "'";
    }
  }
  return out;
}

std::string Zsh(const CommandTable& table) {
  std::string out =
      "#compdef mycroft\n"
      "_mycroft() {\n"
      "  local curcontext=$curcontext state line\n"
      "  typeset -A opt_args\n"
      "  _arguments -C" +
      ZshArguments(table.global, "    ") +
      " \\\n    '1:verb:->verb' '*::argument:->argument'\n"
      "  case $state in\n"
      "  verb)\n"
      "    local -a verbs=(\n";
  for (const VerbTable& verb : table.verbs) {
    out += "      '" + verb.doc.name + ":" + ZshQuote(verb.doc.summary) + "'\n";
  }
  out +=
      "    )\n"
      "    _describe verb verbs ;;\n"
      "  argument)\n"
      "    case $line[1] in\n";
  for (const VerbTable& verb : table.verbs) {
    std::string rest = verb.doc.name == "run" ? "'*::command:_normal'" : "'*:file:_files'";
    bool positional = false;
    for (const OptionRow& row : verb.options) {
      positional = positional || row.positional();
      if (row.positional() && !row.choices().empty()) {
        rest = "'1:" + row.names[0] + ":" + ZshAction(row) + "'";
      }
    }
    out += "    " + verb.doc.name + ") _arguments" + ZshArguments(verb.options, "      ") +
           (positional ? " \\\n      " + rest : "") + " ;;\n";
  }
  out +=
      "    esac ;;\n"
      "  esac\n"
      "}\n"
      "if [[ $funcstack[1] == _mycroft ]]; then _mycroft \"$@\"; else compdef _mycroft mycroft; "
      "fi\n";
  return out;
}

std::string FishQuote(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "'";
}

std::string FishOptions(const std::vector<OptionRow>& rows, const std::string& condition) {
  std::string out;
  for (const OptionRow& row : rows) {
    if (row.positional()) {
      if (!row.choices().empty()) {
        out += "complete -c mycroft" + condition + " -f -a " +
               FishQuote(JoinNames(row.choices(), " ")) + "\n";
      }
      continue;
    }
    out += "complete -c mycroft" + condition;
    for (const std::string& name : row.names) {
      out += name.rfind("--", 0) == 0 ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    if (!row.choices().empty()) {
      out += " -x -a " + FishQuote(JoinNames(row.choices(), " "));
    } else if (!row.value.empty()) {
      out += row.is_file() ? " -r -F" : " -x";
    }
    out += " -d " + FishQuote(row.help) + "\n";
  }
  return out;
}

std::string Fish(const CommandTable& table) {
  std::string out =
      "# fish completion for mycroft\ncomplete -c mycroft -f -n __fish_use_subcommand\n";
  out += FishOptions(table.global, "");
  for (const VerbTable& verb : table.verbs) {
    out += "complete -c mycroft -f -n __fish_use_subcommand -a " + verb.doc.name + " -d " +
           FishQuote(verb.doc.summary) + "\n";
    out += FishOptions(verb.options, " -n '__fish_seen_subcommand_from " + verb.doc.name + "'");
  }
  return out;
}

}  // namespace

std::string CompletionScript(const CommandTable& table, const std::string& shell) {
  if (shell == "zsh") return Zsh(table);
  if (shell == "fish") return Fish(table);
  return Bash(table);
}

}  // namespace mycroft
