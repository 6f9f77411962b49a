// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/top/render.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "userspace/base/loss.h"
#include "userspace/base/text.h"
#include "userspace/base/units.h"
#include "userspace/report/text.h"
#include "userspace/report/top/rows.h"
#include "userspace/report/top/setup.h"
#include "userspace/report/verdict.h"

namespace mycroft {
namespace {

using std::to_string;

std::string Percent(double share) {
  if (!std::isfinite(share) || share < 0) return "?";
  return to_string(static_cast<long>(std::floor(std::min(share, 9.99) * 100 + 1e-9))) + "%";
}

uint64_t Since(uint64_t now, uint64_t then) { return now > then ? now - then : 0; }

// Cuts a line to the width, and fills it up when `fill`, as a selected line needs.
void Fit(FrameLine& line, size_t width, bool fill) {
  size_t used = 0;
  for (size_t i = 0; i < line.spans.size(); ++i) {
    const size_t cells = CellWidth(line.spans[i].text);
    if (used + cells > width) {
      std::string& text = line.spans[i].text;
      while (used + CellWidth(text) > width && !text.empty() && text.back() == ' ') text.pop_back();
      text = FitCells(text, width - used);
      line.spans.resize(i + 1);
      return;
    }
    used += cells;
  }
  if (fill) line.spans.push_back({std::string(width - used, ' '), TextStyle::kNormal});
}

FrameLine TextLine(const std::string& text, TextStyle style = TextStyle::kNormal) {
  return {{{text, style}}, false};
}

std::string Count(size_t n, const char* noun) {
  return to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

// "AllReduce #412" of the operation that hangs in the communicator.
std::string OperationIn(const JobView& job, uint64_t comm_id) {
  for (const CommView& comm : job.comms) {
    if (comm.comm_id != comm_id) continue;
    const RankView* oldest = nullptr;
    for (const RankView& rank : comm.ranks) {
      if (rank.in_flight && (oldest == nullptr || rank.ordinal < oldest->ordinal)) oldest = &rank;
    }
    if (oldest == nullptr) return "";
    return std::string(ToString(oldest->func)) + " #" + to_string(oldest->ordinal);
  }
  return "";
}

std::string Blamed(const Incident& incident) {
  if (incident.culprits.empty()) return "culprit not known: not enough evidence";
  const Culprit& first = incident.culprits.front();
  std::string text = CulpritName(first);
  if (!first.host.empty()) text += " on " + PrintableText(first.host);
  text += " (" + Percent(first.confidence) + ")";
  for (size_t i = 1; i < incident.culprits.size(); ++i) {
    if (i == 2) {
      text += " and " + to_string(incident.culprits.size() - 2) + " more";
      break;
    }
    text += ", " + CulpritName(incident.culprits[i]);
  }
  return text;
}

TextStyle SeverityStyle(const Incident& incident) {
  return incident.kind == IncidentKind::kSlow ? TextStyle::kWarning : TextStyle::kCritical;
}

char SeverityLetter(const Incident& incident) {
  return incident.kind == IncidentKind::kSlow ? 'W' : 'C';
}

std::string StuckSentence(const Incident& incident, const TopData& data) {
  const std::string operation = OperationIn(data.job, incident.comm_id);
  std::string text = std::string(KindName(incident.kind)) + " for " +
                     ShortDuration(Since(data.job.t_ns, incident.onset_ns)) + ": " +
                     Blamed(incident);
  if (!incident.victims.empty()) {
    text += "; " + Count(incident.victims.size(), "rank") +
            (incident.victims.size() == 1 ? " waits" : " wait");
  }
  if (!operation.empty()) text += " in " + operation;
  return text;
}

FrameLine SecondLine(const TopData& data, const TopSource& source) {
  if (!source.problem.empty()) {
    return TextLine("no more data: " + PrintableText(source.problem), TextStyle::kWarning);
  }
  const std::vector<const Incident*> open = OpenIncidents(data);
  if (!open.empty()) return TextLine(PrintableText(open.front()->summary));
  if (data.job.processes == 0 && data.job.comms.empty()) {
    for (const BlindSpot& spot : data.blind_spots) {
      return TextLine(PrintableText(spot.what) +
                      (spot.fix.empty() ? "" : "; " + PrintableText(spot.fix)));
    }
    return TextLine(source.live
                        ? "start the job with 'mycroft run -- COMMAND', or see 'mycroft doctor'"
                        : "the recording holds no process at this time");
  }
  if (data.incidents.empty()) return TextLine("no incident so far", TextStyle::kDim);
  const Incident& last = data.incidents.back();
  const uint64_t cleared = last.cleared_ns.value_or(data.job.t_ns);
  return TextLine("last: " + std::string(KindName(last.kind)) + " for " +
                      ShortDuration(Since(cleared, last.onset_ns)) + ", " + Blamed(last) +
                      ", cleared " + ShortDuration(Since(data.job.t_ns, cleared)) + " ago",
                  TextStyle::kDim);
}

std::string LevelName(uint32_t level) {
  switch (level) {
    case MC_LEVEL_OPS:
      return "ops";
    case MC_LEVEL_STEPS:
      return "steps";
    case MC_LEVEL_KERNELS:
      return "kernels";
    default:
      return "?";
  }
}

std::string Bar(double share, size_t cells, bool ascii) {
  const double full = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
  const size_t on = static_cast<size_t>(std::floor(full * static_cast<double>(cells) + 1e-9));
  std::string bar;
  for (size_t i = 0; i < cells; ++i) {
    bar += i < on ? (ascii ? "#" : "\xe2\x96\x88") : (ascii ? "." : "\xe2\x96\x91");
  }
  return bar;
}

std::string WallClock(uint64_t wall_ns) {
  const time_t seconds = static_cast<time_t>(wall_ns / 1'000'000'000);
  struct tm local {};
  char buffer[32];
  if (wall_ns == 0 || ::localtime_r(&seconds, &local) == nullptr ||
      std::strftime(buffer, sizeof buffer, "%H:%M:%S", &local) == 0) {
    return "";
  }
  return buffer;
}

FrameLine StatusLine(const TopData& data, const TopSource& source, const TopState& state,
                     size_t width) {
  FrameLine line;
  const auto add = [&](const std::string& text, TextStyle style = TextStyle::kNormal) {
    line.spans.push_back({text, style});
  };
  if (source.live) {
    add("live", TextStyle::kBold);
    if (state.paused) add(" PAUSED", TextStyle::kWarning);
  } else {
    const uint64_t length = Since(source.last_ns, source.first_ns);
    const uint64_t at = Since(data.job.t_ns, source.first_ns);
    const double share = length == 0 ? 1 : static_cast<double>(at) / static_cast<double>(length);
    const size_t name = std::min<size_t>(CellWidth(source.name), width / 4);
    add(FitCells(PrintableText(source.name), name), TextStyle::kBold);
    add(" " + std::string(state.playing ? ">" : "|") + " +" + ShortDuration(at) + " of " +
        ShortDuration(length) + " ");
    add(Bar(share, width / 5, state.ascii));
    if (source.reading < 1) add(" reading " + Percent(source.reading), TextStyle::kWarning);
  }
  const std::string clock = WallClock(data.job.wall_ns);
  if (!clock.empty()) add("  " + clock);
  size_t comms = 0;
  for (const CommView& comm : data.job.comms) comms += comm.finalized ? 0 : 1;
  add("  " + to_string(data.job.processes) + (data.job.processes == 1 ? " process" : " processes") +
      ", " + Count(comms, "comm"));
  if (data.job.level != MC_LEVEL_UNSET) add(", level " + LevelName(data.job.level));
  if (source.interval_ns != 0) add(", every " + ExactDuration(source.interval_ns));
  size_t deep = 0, armed = 0;
  for (const ProbeSample& probe : data.job.probes) {
    if (probe.level != ProbeLevel::kDeep || probe.attached.empty()) continue;
    ++deep;
    armed += probe.armed ? 1 : 0;
  }
  if (armed > 0) {
    add("  deep probes " + to_string(armed) + "/" + to_string(deep), TextStyle::kBold);
  }
  if (data.job.gpu_recorded > 0) {
    add("  GPU records " + to_string(data.job.gpu_recorded) + "/" + to_string(data.job.gpu_watched),
        TextStyle::kBold);
  }
  uint64_t lost = data.job.torn_reads;
  for (size_t i = 0; i < data.job.lost.size(); ++i) {
    if (IsLoss(static_cast<mc_loss>(i))) lost += data.job.lost[i];
  }
  if (lost > 0) add("  lost " + to_string(lost), TextStyle::kWarning);
  if (!data.blind_spots.empty()) {
    add("  " + Count(data.blind_spots.size(), "blind spot"), TextStyle::kWarning);
  }
  if (!state.filter.empty()) add("  filter: " + state.filter, TextStyle::kBold);
  return line;
}

// Keeps the end, which is what tells "gpu-node-017" from its neighbours.
std::string FitTail(std::string text, size_t cells) {
  if (CellWidth(text) <= cells) return FitCells(text, cells);
  while (!text.empty() && CellWidth(text) + 1 > cells) {
    text.erase(0, 1);
    while (!text.empty() && (static_cast<unsigned char>(text[0]) & 0xc0) == 0x80) text.erase(0, 1);
  }
  return FitCells("~" + text, cells);
}

// Column widths of a rank's row for a width of the screen.
struct Columns {
  explicit Columns(size_t width, bool tree) {
    const size_t fixed =
        1 + 1 + rank + 1 + 1 + 1 + seq + 1 + progress + 1 + rate + 1 + base + 1 + 1 + age;
    size_t left = width > fixed ? width - fixed : 0;
    const auto take = [&](size_t want) {
      const size_t got = std::min(left, want);
      left -= got;
      return got;
    };
    op = take(13);
    wait = take(9);
    host = take(7);
    if (left >= 7) {  // from about 88 columns on
      waited = 6;
      left -= 7;
    }
    if (left >= 7) host += take(7);
    if (left >= 2) {
      progress += 2;
      left -= 2;
    }
    if (!tree && left >= 13) {
      comm = 12;
      left -= 13;
    }
    if (left >= 19) {
      wait += take(19);  // the long form
      long_wait = true;
    }
    if (left >= 17) {
      process = 16;
      left -= 17;
    }
  }
  size_t rank = 6, seq = 7, progress = 10, rate = 7, base = 5, age = 6;
  size_t host = 0, op = 0, wait = 0, waited = 0, process = 0, comm = 0;
  bool long_wait = false;
};

FrameLine Titles(const Columns& c, const TopState& state) {
  std::string text;
  const auto add = [&](const char* title, size_t width, Align align = Align::kLeft) {
    if (width > 0) text += FitCells(title, width, align, "") + " ";
  };
  add("", 1);
  add("RANK", c.rank, Align::kRight);
  if (!state.tree) add("COMM", c.comm);
  add("HOST", c.host);
  add("PROCESS", c.process);
  add("OPERATION", c.op);
  add("SEQ", c.seq, Align::kRight);
  add("PROGRESS", c.progress);
  add("RATE", c.rate, Align::kRight);
  add("/BASE", c.base, Align::kRight);
  add("WAITS FOR", c.wait);
  add("FOR", c.waited, Align::kRight);
  add("AGE", c.age, Align::kRight);
  return TextLine(text, TextStyle::kHeader);
}

FrameLine IncidentRow(const Incident& incident, const TopData& data) {
  const bool open = IsOpen(incident, data.job.t_ns);
  const TextStyle style = open ? SeverityStyle(incident) : TextStyle::kDim;
  std::string text =
      std::string(1, open ? SeverityLetter(incident) : ' ') + " #" + to_string(incident.id) + " ";
  if (open) {
    text += StuckSentence(incident, data);
  } else {
    text += std::string(KindName(incident.kind)) + " for " +
            ShortDuration(Since(*incident.cleared_ns, incident.onset_ns)) + ", cleared " +
            ShortDuration(Since(data.job.t_ns, *incident.cleared_ns)) + " ago: " + Blamed(incident);
  }
  return TextLine(text, style);
}

FrameLine CommRow(const CommView& comm, const TopState& state) {
  const bool collapsed = state.collapsed.count(comm.comm_id) != 0;
  std::string text =
      state.ascii ? (collapsed ? "+ " : "- ") : (collapsed ? "\xe2\x96\xb8 " : "\xe2\x96\xbe ");
  text += comm.name.empty() ? "communicator " + HexText(comm.comm_id)
                            : "\"" + PrintableText(comm.name) + "\"";
  text += "  " + Count(static_cast<size_t>(std::max(comm.nranks, 0)), "rank");
  if (static_cast<int64_t>(comm.ranks.size()) != comm.nranks) {
    text += ", " + to_string(comm.ranks.size()) + " seen";
  }
  size_t in_flight = 0;
  uint64_t low = UINT64_MAX, high = 0;
  for (const RankView& rank : comm.ranks) {
    in_flight += rank.in_flight ? 1 : 0;
    low = std::min(low, rank.ordinal);
    high = std::max(high, rank.ordinal);
  }
  if (comm.finalized) {
    text += "  finalized";
  } else if (!comm.ranks.empty()) {
    text += "  " + to_string(in_flight) + " in flight, #" + to_string(low) +
            (high > low ? " to #" + to_string(high) : "");
  }
  return TextLine(text, comm.finalized ? TextStyle::kDim : TextStyle::kBold);
}

FrameLine RankRow(const TopRow& row, const TopState& state, const Columns& c) {
  const RankView& rank = *row.rank;
  FrameLine line;
  const auto add = [&](const std::string& text, size_t width, Align align = Align::kLeft,
                       TextStyle style = TextStyle::kNormal) {
    if (width > 0) line.spans.push_back({FitCells(text, width, align) + " ", style});
  };
  TextStyle style = TextStyle::kNormal;
  std::string mark = " ";
  switch (row.blame) {
    case RowBlame::kNone:
      break;
    case RowBlame::kVictim:
      mark = "v", style = TextStyle::kWarning;
      break;
    case RowBlame::kCulprit:
      mark = "C", style = TextStyle::kCritical;
      break;
  }
  if (rank.process_state == 'X') mark = "X";
  const bool stopped = rank.process_state == 'T' || rank.process_state == 't';
  const bool gone = rank.process_state == 'X' || rank.process_state == 'Z';
  add(mark, 1, Align::kLeft, style);
  std::string branch;
  if (state.tree) {
    branch = row.last_of_comm ? (state.ascii ? "`-" : "\xe2\x94\x94\xe2\x94\x80")
                              : (state.ascii ? "|-" : "\xe2\x94\x9c\xe2\x94\x80");
  }
  add(branch + FitCells(to_string(rank.job_rank), c.rank - CellWidth(branch), Align::kRight),
      c.rank, Align::kLeft, style);
  if (!state.tree) add(CommunicatorName(row.comm->comm_id, row.comm->name), c.comm);
  if (c.host > 0) add(FitTail(PrintableText(rank.host), c.host), c.host);
  add(PrintableText(rank.process_name) + " " + to_string(rank.process.pid), c.process);
  const bool any = rank.func != MC_FUNC_UNKNOWN || rank.in_flight;
  add(any ? ToString(rank.func) : "-", c.op);
  add(any ? "#" + to_string(rank.ordinal) : "-", c.seq, Align::kRight);
  if (rank.in_flight) {
    add(Bar(rank.progress, c.progress - 5, state.ascii) + " " +
            FitCells(Percent(std::min(rank.progress, 1.0)), 4, Align::kRight),
        c.progress);
  } else {
    add(any ? "done" : "-", c.progress, Align::kLeft, TextStyle::kDim);
  }
  add(rank.bytes_per_s > 0 ? ShortRate(rank.bytes_per_s) : "-", c.rate, Align::kRight);
  const double share =
      rank.baseline_bytes_per_s > 0 ? rank.bytes_per_s / rank.baseline_bytes_per_s : 0;
  add(rank.baseline_bytes_per_s > 0 && rank.bytes_per_s > 0 ? Percent(share) : "-", c.base,
      Align::kRight, share > 0 && share <= 0.5 ? TextStyle::kWarning : TextStyle::kNormal);
  if (gone || stopped) {
    add(gone ? "gone" : "stopped", c.wait, Align::kLeft, TextStyle::kCritical);
  } else if (rank.in_flight) {
    add(c.long_wait && rank.wait != MC_FLOW_IDLE ? ToString(rank.wait) : ShortState(rank.wait),
        c.wait);
  } else {
    add("-", c.wait, Align::kLeft, TextStyle::kDim);
  }
  add(rank.in_flight && rank.wait != MC_FLOW_IDLE ? ShortDuration(rank.wait_age_ns) : "-", c.waited,
      Align::kRight);
  add(any ? ShortDuration(rank.age_ns) : "-", c.age, Align::kRight,
      rank.in_flight ? TextStyle::kNormal : TextStyle::kDim);
  return line;
}

FrameLine Footer(const TopSource& source, const TopState& state, size_t width) {
  if (state.editing) return TextLine("filter: " + state.edit + "_", TextStyle::kBold);
  if (!state.message.empty()) return TextLine(PrintableText(state.message), TextStyle::kBold);
  using Hint = std::pair<const char*, const char*>;
  std::vector<Hint> hints;
  switch (state.screen) {
    case TopScreen::kMain:
      hints = source.live ? std::vector<Hint>{{"q", "quit"},   {"h", "help"},   {"Enter", "open"},
                                              {"/", "filter"}, {"<>", "sort"},  {"space", "pause"},
                                              {"t", "tree"},   {"p", "preset"}, {"s", "save"}}
                          : std::vector<Hint>{{"q", "quit"},   {"h", "help"},  {"Enter", "open"},
                                              {"[]", "1 s"},   {"{}", "10 s"}, {"space", "play"},
                                              {"/", "filter"}, {"<>", "sort"}, {"s", "save"}};
      break;
    case TopScreen::kRank:
    case TopScreen::kIncident:
    case TopScreen::kHelp:
      hints = {{"q", "back"}, {"arrows", "scroll"}, {"s", "save"}, {"h", "help"}};
      break;
    case TopScreen::kSetup:
      hints = {{"q", "back"}, {"up/down", "choose"}, {"Enter", "change"}, {"w", "write to file"}};
      break;
  }
  FrameLine line;
  size_t used = 0;
  for (const auto& [key, what] : hints) {
    const std::string text = std::string(" ") + what + "  ";
    const size_t cells = CellWidth(key) + CellWidth(text);
    if (used + cells > width + 2) break;
    line.spans.push_back({key, TextStyle::kKey});
    line.spans.push_back({text, TextStyle::kDim});
    used += cells;
  }
  return line;
}

void AddText(std::vector<FrameLine>& lines, const std::string& text,
             TextStyle style = TextStyle::kNormal) {
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    lines.push_back(TextLine(text.substr(begin, end - begin), style));
    begin = end + 1;
  }
}

void AddParagraph(std::vector<FrameLine>& lines, const std::string& text, size_t width) {
  std::string wrapped;
  AppendWrapped(wrapped, "", PrintableText(text), width);
  AddText(lines, wrapped);
}

std::vector<FrameLine> IncidentDetail(const TopData& data, const TopSource& source,
                                      const TopState& state, size_t width) {
  std::vector<FrameLine> lines;
  for (const Incident& incident : data.incidents) {
    if (incident.id != state.opened.id) continue;
    VerdictTextOptions options;
    options.now_ns = data.job.t_ns;
    options.start_ns = source.live ? 0 : source.first_ns;
    // Wrapped again: the report is made for 80 columns, the screen may be narrower.
    const std::string text = VerdictText({incident}, data.blind_spots, options);
    size_t begin = 0;
    while (begin < text.size()) {
      size_t end = text.find('\n', begin);
      if (end == std::string::npos) end = text.size();
      const std::string line = text.substr(begin, end - begin);
      if (CellWidth(line) <= width) {
        lines.push_back(TextLine(line));
      } else {
        AddParagraph(lines, line, width);
      }
      begin = end + 1;
    }
    return lines;
  }
  lines.push_back(TextLine("This incident was not known yet at the time of the cursor."));
  return lines;
}

// The GPUs and NICs of a rank, a line for each and one for each problem.
void AddDevices(std::vector<FrameLine>& lines, const TopData& data, const RankView& rank,
                size_t width) {
  bool any = false;
  for (const DeviceView& device : data.job.devices) {
    if (device.host != rank.host ||
        std::find(device.processes.begin(), device.processes.end(), rank.process) ==
            device.processes.end()) {
      continue;
    }
    std::string text = DeviceName(device);
    if (device.bytes_per_s > 0) text += ", path " + ShortRate(device.bytes_per_s);
    if (!device.path.empty() && !device.path[0].link.empty()) {
      text += ", link " + device.path[0].link;
    }
    for (const PortView& port : device.ports) text += ", " + PortText(port);
    if (const std::string health = HealthText(device); !health.empty()) text += ", " + health;
    AddParagraph(lines, text, width);
    for (const std::string& problem : device.problems) {
      const size_t first = lines.size();
      AddParagraph(lines, "! " + problem, width);
      for (size_t i = first; i < lines.size(); ++i) lines[i].spans[0].style = TextStyle::kWarning;
    }
    any = true;
  }
  if (any) lines.push_back(TextLine(""));
}

std::vector<FrameLine> RankDetail(const TopData& data, const TopState& state, size_t width) {
  std::vector<FrameLine> lines;
  for (const CommView& comm : data.job.comms) {
    if (comm.comm_id != state.opened.id) continue;
    for (const RankView& rank : comm.ranks) {
      if (rank.rank != state.opened.rank) continue;
      std::string who = "rank " + to_string(rank.job_rank) + ": rank " + to_string(rank.rank) +
                        " of " + to_string(comm.nranks) + " in " +
                        (comm.name.empty() ? "communicator " + HexText(comm.comm_id)
                                           : "\"" + PrintableText(comm.name) + "\"");
      who += ", " + PrintableText(rank.process_name) + " pid " + to_string(rank.process.pid) +
             " on " + PrintableText(rank.host) + ", process state " +
             PrintableText(std::string(1, rank.process_state));
      AddParagraph(lines, who, width);
      std::string what = rank.in_flight ? "in flight: " : "last: ";
      what += std::string(ToString(rank.func)) + " #" + to_string(rank.ordinal);
      if (rank.op_bytes > 0) what += ", " + BytesText(rank.op_bytes);
      if (rank.in_flight) what += ", " + Percent(std::min(rank.progress, 1.0)) + " done";
      what += (rank.in_flight ? ", for " : ", ended ") + ShortDuration(rank.age_ns) +
              (rank.in_flight ? "" : " ago");
      if (rank.bytes_per_s > 0) what += "; the last one ran at " + ShortRate(rank.bytes_per_s);
      if (rank.baseline_bytes_per_s > 0) {
        what += ", baseline " + ShortRate(rank.baseline_bytes_per_s);
      }
      AddParagraph(lines, what, width);
      lines.push_back(TextLine(""));
      AddDevices(lines, data, rank, width);
      if (rank.flows.empty()) {
        AddParagraph(lines,
                     "No flow is seen on this rank: its hops stay within the node, or the level is "
                     "'ops'.",
                     width);
        return lines;
      }
      lines.push_back(TextLine(
          FitCells(" CH DIR   PEER STATE                        FOR   DONE/TOTAL  PROGRESS  "
                   "    BYTES  WAITED FOR",
                   width, Align::kLeft, ""),
          TextStyle::kHeader));
      for (const FlowView& flow : rank.flows) {
        const bool send = flow.direction == MC_SEND;
        const double share =
            flow.total == 0 ? 0 : static_cast<double>(flow.done) / static_cast<double>(flow.total);
        std::string text =
            FitCells(to_string(flow.channel), 3, Align::kRight) + " " + (send ? "send" : "recv") +
            " " + FitCells(to_string(flow.peer), 5, Align::kRight) + " " +
            FitCells(ToString(flow.state), 27) + " " +
            FitCells(flow.state == MC_FLOW_IDLE ? "-" : ShortDuration(flow.state_age_ns), 6,
                     Align::kRight) +
            " " + FitCells(to_string(flow.done) + "/" + to_string(flow.total), 11, Align::kRight) +
            "  " + Bar(share, 8, state.ascii) + "  " +
            FitCells(BytesText(flow.bytes), 9, Align::kRight) + "  ";
        static constexpr const char* kSend[3] = {"GPU", "peer", "net"};
        static constexpr const char* kRecv[3] = {"peer", "bus", "GPU"};
        for (size_t i = 0; i < 3; ++i) {
          text += std::string(i == 0 ? "" : ", ") + (send ? kSend[i] : kRecv[i]) + " " +
                  ShortDuration(flow.wait_ns[i]);
        }
        FrameLine line = TextLine(text);
        if (flow.state != MC_FLOW_IDLE && flow.state_age_ns >= 1'000'000'000) {
          line.spans[0].style = TextStyle::kWarning;
        }
        lines.push_back(line);
      }
      return lines;
    }
  }
  lines.push_back(TextLine("This rank is not there at this time."));
  return lines;
}

std::vector<FrameLine> HelpText() {
  std::vector<FrameLine> lines;
  AddText(lines,
          "The first line says if anything is stuck, since when, and whose fault it is.\n"
          "C  critical: stuck, absent, mismatched or dead; in the list: the culprit\n"
          "W  warning: slow       v  victim: waits for a culprit       X  process is gone\n"
          "\n"
          "arrows j k PgUp PgDn g G  move         Enter   open a rank or incident, fold\n"
          "/ f     filter: all words must match   Esc     clear the filter, leave\n"
          "< > F6  sort by rank, age, wait, progress, rate, host          r   reverse\n"
          "t e     tree, or one list              p       presets\n"
          "1 2 3 4 incidents, status line, finalized communicators, only trouble\n"
          "space u pause (live), play (recording) + -     refresh slower, faster\n"
          "s       save this screen to a file     o F2    setup\n"
          "h ? F1  this help                      q F10   quit\n"
          "In a recording:  [ ] or left right 1 s     { } 10 s     Home End first, last\n"
          "\n"
          "RANK      in the largest communicator of its process: the job's rank\n"
          "SEQ       number of the operation in its communicator, from 0\n"
          "RATE      of the last finished operation of that kind; /BASE: of its baseline\n"
          "WAITS FOR what the head of the line waits for\n"
          "  send GPU   own GPU fills the buffer     recv peer  the sender or the network\n"
          "  send peer  receiver grants the slot     recv bus   path NIC, PCIe, GPU\n"
          "  send net   network, remote NIC          recv GPU   own GPU empties the buffer\n"
          "  queued, starting: behind an earlier operation, not yet in progress\n"
          "AGE       in flight: since it started; done: since it ended\n");
  return lines;
}

std::vector<FrameLine> SetupScreen(const TopState& state, size_t width) {
  std::vector<FrameLine> lines;
  int at = 0;
  for (const SetupRow& row : SetupRows(state)) {
    FrameLine line = TextLine("  " + FitCells(row.name, 10) + FitCells(row.value, 12) + row.help);
    if (at++ == state.setup_row) {
      line.selected = true;
      line.spans[0].text[0] = '>';
    }
    Fit(line, width, line.selected);
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

FrameLine Headline(const TopData& data, const TopSource& source) {
  const std::vector<const Incident*> open = OpenIncidents(data);
  if (!open.empty()) {
    const Incident& first = *open.front();
    std::string text = std::string(1, SeverityLetter(first)) + " " + StuckSentence(first, data);
    if (open.size() > 1) {
      text = std::string(1, SeverityLetter(first)) + " (1 of " + to_string(open.size()) + ") " +
             StuckSentence(first, data);
    }
    return TextLine(text, SeverityStyle(first));
  }
  if (data.job.processes == 0 && data.job.comms.empty()) {
    return TextLine(source.live
                        ? "  NOTHING TO OBSERVE: no process with Mycroft's plugin is running"
                        : "  NOTHING TO OBSERVE: no process in the recording at this time",
                    TextStyle::kWarning);
  }
  size_t in_flight = 0;
  for (const CommView& comm : data.job.comms) {
    for (const RankView& rank : comm.ranks) in_flight += rank.in_flight ? 1 : 0;
  }
  return TextLine("  OK: nothing is stuck or slow; " + Count(in_flight, "operation") + " in flight",
                  TextStyle::kGood);
}

size_t PageRows(const TopState& state, const FrameSize& size) {
  const size_t taken = state.show_status ? 5 : 4;
  return size.height > taken ? size.height - taken : 1;
}

Frame RenderTop(const TopData& data, const TopSource& source, TopState& state,
                const FrameSize& size) {
  Frame frame;
  const bool whole = size.height == 0;
  if (!whole && (size.width < kMinWidth || size.height < kMinHeight)) {
    FrameLine line = TextLine("terminal too small");
    Fit(line, size.width, false);
    if (size.height > 0) frame.lines.push_back(line);
    return frame;
  }
  const auto add = [&](FrameLine line) {
    Fit(line, size.width, line.selected);
    frame.lines.push_back(std::move(line));
  };
  add(Headline(data, source));
  add(SecondLine(data, source));
  if (state.show_status) add(StatusLine(data, source, state, size.width));
  const size_t page = PageRows(state, size);

  if (state.screen == TopScreen::kMain) {
    const std::vector<TopRow> rows = BuildRows(data, state);
    const Columns columns(size.width, state.tree);
    add(Titles(columns, state));
    size_t selected = rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].id == state.selected) selected = i;
    }
    if (selected == rows.size()) selected = 0;
    const size_t visible = whole ? rows.size() : page;
    if (whole) state.scroll = 0;
    if (selected < state.scroll) state.scroll = selected;
    if (selected >= state.scroll + visible && visible > 0) state.scroll = selected - visible + 1;
    if (rows.size() <= visible) state.scroll = 0;
    for (size_t i = state.scroll; i < std::min(rows.size(), state.scroll + visible); ++i) {
      FrameLine line = rows[i].incident != nullptr ? IncidentRow(*rows[i].incident, data)
                       : rows[i].rank != nullptr   ? RankRow(rows[i], state, columns)
                                                   : CommRow(*rows[i].comm, state);
      line.selected = !whole && i == selected;
      add(std::move(line));
    }
    if (rows.empty() && !(data.job.comms.empty() && state.filter.empty())) {
      add(TextLine("  no row matches; Esc clears the filter", TextStyle::kDim));
    }
  } else {
    std::vector<FrameLine> lines;
    std::string title;
    switch (state.screen) {
      case TopScreen::kMain:
        break;
      case TopScreen::kRank:
        title = "FLOWS OF RANK";
        lines = RankDetail(data, state, size.width);
        break;
      case TopScreen::kIncident:
        title = "INCIDENT #" + to_string(state.opened.id);
        lines = IncidentDetail(data, source, state, size.width);
        break;
      case TopScreen::kHelp:
        title = "HELP";
        lines = HelpText();
        break;
      case TopScreen::kSetup:
        title = "SETUP";
        lines = SetupScreen(state, size.width);
        break;
    }
    const size_t visible = whole ? lines.size() : page;
    state.detail_scroll =
        lines.size() > visible ? std::min(state.detail_scroll, lines.size() - visible) : 0;
    if (lines.size() > visible) {
      title += "  (lines " + to_string(state.detail_scroll + 1) + " to " +
               to_string(state.detail_scroll + visible) + " of " + to_string(lines.size()) + ")";
    }
    add(TextLine(title, TextStyle::kHeader));
    const size_t end = std::min(lines.size(), state.detail_scroll + visible);
    for (size_t i = state.detail_scroll; i < end; ++i) add(std::move(lines[i]));
  }
  if (!whole) {
    while (frame.lines.size() + 1 < size.height) frame.lines.push_back({});
    add(Footer(source, state, size.width));
  }
  return frame;
}

}  // namespace mycroft
