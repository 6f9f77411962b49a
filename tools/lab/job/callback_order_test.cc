// SPDX-License-Identifier: Apache-2.0
//
// The checker against recordings of real NCCL (MYCROFT_TRACES), and against
// recordings that were made wrong on purpose.
#include "tools/lab/job/callback_order.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>

namespace mycroft::lab {
namespace {

using nlohmann::json;

TEST(CallbackOrderTest, RealNcclPasses) {
  const char* folder = getenv("MYCROFT_TRACES");
  if (folder == nullptr || folder[0] == '\0') {
    GTEST_SKIP() << "MYCROFT_TRACES is not set: the order of real NCCL was NOT compared";
  }
  int files = 0;
  std::set<int> apis;
  int64_t messages = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string path = entry.path();
    if (path.find(".jsonl") == std::string::npos) continue;
    std::vector<json> lines;
    std::string error;
    ASSERT_TRUE(ReadRecording(path, &lines, &error)) << error;
    const OrderReport report = CheckOrder(lines);
    EXPECT_TRUE(report.violations.empty())
        << path << ": " << ::testing::PrintToString(report.violations);
    EXPECT_GT(report.steps, 0) << path;
    apis.insert(report.api);
    messages += report.messages;
    ++files;
  }
  EXPECT_GE(files, 1);
  EXPECT_EQ(apis, (std::set<int>{4, 5, 6}));
  EXPECT_GT(messages, 0);
}

// One AllReduce of rank 0 of 2, one channel, two transfers each way.
std::vector<json> Small() {
  const char* text[] = {
      R"({"k":"hdr","v":1,"pid":1,"av":5,"nccl":"x","mono":0,"wall":0})",
      R"({"k":"thr","t":1,"th":1,"name":"train"})",
      R"({"k":"init","t":1,"th":1,"av":5,"c":1,"comm":"a","name":"world","nn":2,"n":2,"r":0,"mask":4063})",
      R"({"k":"b","t":2,"th":1,"c":1,"ty":256,"h":1,"rk":0,"cap":0,"dep":1})",
      R"({"k":"s","t":2,"th":1,"h":1,"st":23})",
      R"({"k":"b","t":2,"th":1,"c":1,"ty":512,"h":2,"p":1,"rk":0,"fn":"AllReduce","cnt":8,"dt":"ncclFloat32","root":0,"str":"f","cap":0})",
      R"({"k":"e","t":2,"th":1,"h":2})",
      R"({"k":"s","t":2,"th":1,"h":1,"st":24})",
      R"({"k":"b","t":2,"th":1,"c":1,"ty":2048,"h":3,"p":1,"rk":0,"str":"f"})",
      R"({"k":"e","t":2,"th":1,"h":3})",
      R"({"k":"b","t":2,"th":1,"c":1,"ty":1,"h":4,"rk":0})",
      R"({"k":"b","t":2,"th":1,"c":1,"ty":2,"h":5,"p":2,"rk":0,"seq":0,"fn":"AllReduce","cnt":8,"dt":"ncclFloat32","root":0,"nch":1,"nw":9,"al":"RING","pr":"SIMPLE","pg":4})",
      R"({"k":"e","t":2,"th":1,"h":5})",
      R"({"k":"e","t":2,"th":1,"h":4})",
      R"({"k":"e","t":2,"th":1,"h":1})",
      R"({"k":"thr","t":3,"th":2,"name":"NCCL Progress 1"})",
      R"({"k":"b","t":3,"th":2,"c":1,"ty":8,"h":6,"p":5,"rk":0,"pid":1,"ch":0,"peer":1,"ns":1,"cs":64,"snd":0})",
      R"({"k":"b","t":3,"th":2,"c":1,"ty":8,"h":7,"p":5,"rk":0,"pid":1,"ch":0,"peer":1,"ns":1,"cs":64,"snd":1})",
      R"({"k":"s","t":3,"th":2,"h":6,"st":19})",
      R"({"k":"b","t":3,"th":2,"c":1,"ty":16,"h":8,"p":6,"rk":0,"step":0})",
      R"({"k":"s","t":3,"th":2,"h":8,"st":10,"sz":0})",
      R"({"k":"s","t":3,"th":2,"h":7,"st":19})",
      R"({"k":"b","t":3,"th":2,"c":1,"ty":16,"h":9,"p":7,"rk":0,"step":0})",
      R"({"k":"s","t":3,"th":2,"h":9,"st":8,"sz":0})",
      R"({"k":"s","t":4,"th":2,"h":9,"st":20,"sz":0})",
      R"({"k":"s","t":4,"th":2,"h":9,"st":9,"sz":32})",
      R"({"k":"s","t":4,"th":2,"h":8,"st":11,"sz":32})",
      R"({"k":"s","t":4,"th":2,"h":8,"st":12,"sz":32})",
      R"({"k":"e","t":5,"th":2,"h":9})",
      R"({"k":"e","t":5,"th":2,"h":7})",
      R"({"k":"e","t":5,"th":2,"h":8})",
      R"({"k":"e","t":5,"th":2,"h":6})",
      R"({"k":"fini","t":6,"th":1,"c":1})",
      R"({"k":"clk","t":7,"th":1,"wall":0,"end":1,"n":28,"dropped":0})",
  };
  std::vector<json> lines;
  for (const char* line : text) lines.push_back(json::parse(line));
  return lines;
}

TEST(CallbackOrderTest, SmallIsComplete) {
  const OrderReport report = CheckOrder(Small());
  EXPECT_TRUE(report.violations.empty()) << ::testing::PrintToString(report.violations);
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(report.launches, 1);
  EXPECT_EQ(report.collectives, 1);
  EXPECT_EQ(report.proxy_ops, 2);
  EXPECT_EQ(report.steps, 2);
  EXPECT_EQ(report.open_events, 0);
}

size_t LineOf(const std::vector<json>& lines, const std::function<bool(const json&)>& is) {
  for (size_t i = 0; i < lines.size(); ++i) {
    if (is(lines[i])) return i;
  }
  ADD_FAILURE() << "no such line";
  return 0;
}

TEST(CallbackOrderTest, EachMutationIsSeen) {
  struct Case {
    const char* name;
    std::function<void(std::vector<json>*)> mutate;
  };
  auto stop = [](int h) { return [h](const json& l) { return l["k"] == "e" && l["h"] == h; }; };
  auto state = [](int h, int st) {
    return [=](const json& l) { return l["k"] == "s" && l["h"] == h && l["st"] == st; };
  };
  auto start = [](int h) { return [h](const json& l) { return l["k"] == "b" && l["h"] == h; }; };
  const std::vector<Case> cases = {
      {"Coll stops after Group",
       [&](auto* l) { std::swap((*l)[LineOf(*l, stop(5))], (*l)[LineOf(*l, stop(4))]); }},
      {"SendWait before SendPeerWait",
       [&](auto* l) { std::swap((*l)[LineOf(*l, state(9, 20))], (*l)[LineOf(*l, state(9, 9))]); }},
      {"GPU wait before flush wait",
       [&](auto* l) { std::swap((*l)[LineOf(*l, state(8, 11))], (*l)[LineOf(*l, state(8, 12))]); }},
      {"step before InProgress",
       [&](auto* l) {
         const json line = (*l)[LineOf(*l, state(6, 19))];
         l->erase(l->begin() + static_cast<long>(LineOf(*l, state(6, 19))));
         l->insert(l->begin() + static_cast<long>(LineOf(*l, state(8, 10))) + 1, line);
       }},
      {"ProxyOp stops before its step",
       [&](auto* l) { std::swap((*l)[LineOf(*l, stop(9))], (*l)[LineOf(*l, stop(7))]); }},
      {"send posted before receive",
       [&](auto* l) { std::swap((*l)[LineOf(*l, start(6))], (*l)[LineOf(*l, start(7))]); }},
      {"wrong sequence number", [&](auto* l) { (*l)[LineOf(*l, start(5))]["seq"] = 1; }},
      {"Coll without parent", [&](auto* l) { (*l)[LineOf(*l, start(5))].erase("p"); }},
      {"ProxyOp under the Group", [&](auto* l) { (*l)[LineOf(*l, start(6))]["p"] = 4; }},
      {"progress on the user thread",
       [&](auto* l) {
         for (json& line : *l) {
           if (line["k"] != "hdr" && line["th"] == 2) line["th"] = 1;
         }
       }},
      {"no KernelLaunch",
       [&](auto* l) {
         l->erase(l->begin() + static_cast<long>(LineOf(*l, stop(3))));
         l->erase(l->begin() + static_cast<long>(LineOf(*l, start(3))));
       }},
      {"stopped twice", [&](auto* l) { l->insert(l->end() - 2, (*l)[LineOf(*l, stop(6))]); }},
      {"two communicators' threads", [&](auto* l) { (*l)[LineOf(*l, start(9))]["th"] = 3; }},
      {"rank in a GroupApi", [&](auto* l) { (*l)[LineOf(*l, start(1))]["rk"] = 1; }},
  };
  for (const Case& c : cases) {
    std::vector<json> lines = Small();
    for (json& line : lines) {
      if (line.contains("t")) line["t"] = 1;  // the order of lines is the order of calls
    }
    c.mutate(&lines);
    EXPECT_FALSE(CheckOrder(lines).violations.empty()) << c.name;
  }
}

TEST(CallbackOrderTest, RepeatedSendPeerWaitIsARefusedSend) {
  std::vector<json> lines = Small();
  const size_t at =
      LineOf(lines, [](const json& l) { return l["k"] == "s" && l["h"] == 9 && l["st"] == 20; });
  for (int i = 0; i < 2; ++i) {
    const json copy = lines[at];
    lines.insert(lines.begin() + static_cast<long>(at), copy);
  }
  EXPECT_FALSE(CheckOrder(lines).violations.empty());
  const OrderReport report = CheckOrder(lines, Sends::kMayBeRefused);
  EXPECT_TRUE(report.violations.empty()) << ::testing::PrintToString(report.violations);
  EXPECT_EQ(report.refused_sends, 2);
  EXPECT_TRUE(report.complete);
  // Again after SendWait: never.
  const json wait = lines[at];
  lines.insert(lines.begin() + static_cast<long>(at) + 4, wait);
  EXPECT_FALSE(CheckOrder(lines, Sends::kMayBeRefused).violations.empty());
}

TEST(CallbackOrderTest, OpenEventsAreNotComplete) {
  std::vector<json> lines = Small();
  lines.erase(lines.begin() + static_cast<long>(LineOf(lines, [](const json& l) {
                return l["k"] == "e" && l["h"] == 6;
              })));
  const OrderReport report = CheckOrder(lines);
  EXPECT_TRUE(report.violations.empty());
  EXPECT_FALSE(report.complete);
  EXPECT_EQ(report.open_events, 1);
}

}  // namespace
}  // namespace mycroft::lab
