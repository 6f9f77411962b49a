// SPDX-License-Identifier: Apache-2.0
#include "tools/mycroft/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/App.hpp>
#include <set>

#include "tools/mycroft/testing_process.h"

namespace mycroft {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

CommandTable Table() {
  Options options;
  return MakeTable(*MakeApp(options));
}

const VerbTable& Verb(const CommandTable& table, const std::string& name) {
  for (const VerbTable& verb : table.verbs) {
    if (verb.doc.name == name) return verb;
  }
  ADD_FAILURE() << name;
  return table.verbs[0];
}

TEST(Table, HasEveryOptionWithHelpAndValue) {
  const CommandTable table = Table();
  EXPECT_EQ(table.verbs.size(), 9u);
  for (const VerbTable& verb : table.verbs) {
    EXPECT_FALSE(verb.doc.summary.empty());
    EXPECT_FALSE(verb.doc.description.empty()) << verb.doc.name;
    EXPECT_FALSE(verb.doc.examples.empty()) << verb.doc.name;
    for (const OptionRow& row : verb.options) {
      EXPECT_FALSE(row.help.empty()) << verb.doc.name << " " << row.names[0];
      EXPECT_THAT(row.value, Not(HasSubstr("TEXT"))) << verb.doc.name << " " << row.names[0];
    }
  }
  const VerbTable& exporter = Verb(table, "export");
  bool format = false, file = false;
  for (const OptionRow& row : exporter.options) {
    if (row.names[0] == "FILE") {
      file = true;
      EXPECT_TRUE(row.positional());
      EXPECT_TRUE(row.required);
    }
    if (row.names[0] != "-f") continue;
    format = true;
    EXPECT_THAT(row.names, Contains("--format"));
    EXPECT_THAT(row.choices(),
                ::testing::ElementsAre("perfetto", "chrome", "folded", "speedscope", "html"));
  }
  EXPECT_TRUE(format && file);
}

TEST(Completion, BashOffersVerbsOptionsAndChoices) {
  const std::string script = CompletionScript(Table(), "bash");
  const auto complete = [&](const std::string& words) {
    // The word under the cursor is the last one.
    const ProcessResult result =
        RunProcess({"bash", "-c",
                    script + "\nCOMP_WORDS=(" + words +
                        "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _mycroft; "
                        "printf '%s\\n' \"${COMPREPLY[@]}\""});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "") << words;
    return "\n" + result.out;
  };
  EXPECT_EQ(complete("mycroft di"), "\ndiagnose\n");
  EXPECT_THAT(complete("mycroft ''"), HasSubstr("\nmerge\n"));
  EXPECT_THAT(complete("mycroft ''"), Not(HasSubstr("__man")));
  EXPECT_THAT(complete("mycroft record --max"), HasSubstr("\n--max-size\n"));
  EXPECT_EQ(complete("mycroft export f --format s"), "\nspeedscope\n");
  EXPECT_EQ(complete("mycroft -v record --level k"), "\nkernels\n");
  EXPECT_EQ(complete("mycroft completion f"), "\nfish\n");
  EXPECT_THAT(complete("mycroft run --ch"), HasSubstr("--chain"));
  EXPECT_THAT(complete("mycroft run -- bash --ch"), Not(HasSubstr("--chain")));
  EXPECT_THAT(complete("mycroft --config x top --on"), HasSubstr("--once"));
}

TEST(Completion, EveryShellKnowsEveryLongOption) {
  const CommandTable table = Table();
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = CompletionScript(table, shell);
    for (const VerbTable& verb : table.verbs) {
      EXPECT_THAT(script, HasSubstr(verb.doc.name)) << shell;
      for (const OptionRow& row : verb.options) {
        if (row.positional()) continue;
        const std::string name = row.names.back();
        EXPECT_THAT(script,
                    HasSubstr(std::string(shell) == "fish" ? "-l " + name.substr(2) : name));
      }
    }
    // Syntax, where the shell is there.
    if (RunProcess({"sh", "-c", std::string("command -v ") + shell}).exit_code == 0) {
      TemporaryFolder folder;
      const ProcessResult result = RunProcess({shell, "-n", folder.Write("c", script)});
      EXPECT_EQ(result.exit_code, 0) << shell << result.err;
    }
  }
}

TEST(ManualPages, HaveEverySectionAndNoWarning) {
  const CommandTable table = Table();
  const auto pages = ManualPages(table);
  EXPECT_EQ(pages.size(), table.verbs.size() + 1);
  TemporaryFolder folder;
  const bool man = RunProcess({"sh", "-c", "command -v man && command -v groff"}).exit_code == 0;
  const bool mandoc = RunProcess({"sh", "-c", "command -v mandoc"}).exit_code == 0;
  for (const auto& [name, text] : pages) {
    for (const char* section : {".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH EXIT STATUS"}) {
      EXPECT_THAT(text, HasSubstr(section)) << name;
    }
    const std::string path = folder.Write(name, text);
    if (man) {
      const ProcessResult result = RunProcess(
          {"man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", path}, {{"MANROFFSEQ", ""}});
      EXPECT_EQ(result.exit_code, 0) << name;
      EXPECT_EQ(result.err, "") << name;
    }
    if (mandoc) {
      const ProcessResult result = RunProcess({"mandoc", "-Tlint", "-Wwarning", path});
      EXPECT_EQ(result.out, "") << name;
    }
  }
  if (!man && !mandoc) GTEST_LOG_(WARNING) << "neither man nor mandoc: pages were not linted";
  EXPECT_THAT(pages[0].second, HasSubstr("MYCROFT_RECORD_MAX_SIZE"));
  EXPECT_THAT(pages[0].second, HasSubstr(".B 3\n"));
}

}  // namespace
}  // namespace mycroft
