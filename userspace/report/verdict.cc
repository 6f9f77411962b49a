// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/verdict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "userspace/report/text.h"

namespace mycroft {
namespace {

using Json = nlohmann::ordered_json;

// Keeps keys in the order of this file, and numbers that JSON has no word for out.
double Finite(double value) { return std::isfinite(value) ? value : 0; }

Json ToJson(const CommRank& comm) {
  return {{"comm_id", HexText(comm.comm_id)},
          {"comm_name", comm.comm_name},
          {"rank", comm.rank},
          {"nranks", comm.nranks}};
}

Json ToJson(const Culprit& culprit) {
  Json json = {{"rank", culprit.rank},
               {"host", culprit.host},
               {"pid", culprit.pid},
               {"component", ToString(culprit.component)}};
  if (culprit.component == Component::kUnknown) {
    Json candidates = Json::array();
    for (Component candidate : culprit.candidates) candidates.push_back(ToString(candidate));
    json["candidates"] = std::move(candidates);
  }
  json["confidence"] = Finite(culprit.confidence);
  json["gpu_seconds_lost"] = Finite(culprit.gpu_seconds_lost);
  json["where"] = culprit.where;
  Json comms = Json::array();
  for (const CommRank& comm : culprit.comms) comms.push_back(ToJson(comm));
  json["comms"] = std::move(comms);
  return json;
}

Json ToJson(const Incident& incident) {
  Json json = {{"id", incident.id},
               {"kind", ToString(incident.kind)},
               {"onset_ns", incident.onset_ns},
               {"detected_ns", incident.detected_ns},
               {"verdict_ns", incident.verdict_ns},
               {"cleared_ns", nullptr},
               {"comm_id", HexText(incident.comm_id)},
               {"comm_name", incident.comm_name},
               {"summary", incident.summary}};
  if (incident.cleared_ns) json["cleared_ns"] = *incident.cleared_ns;
  Json culprits = Json::array();
  for (const Culprit& culprit : incident.culprits) culprits.push_back(ToJson(culprit));
  json["culprits"] = std::move(culprits);
  json["victims"] = incident.victims;
  Json chain = Json::array();
  for (const WaitEdge& edge : incident.chain) {
    chain.push_back({{"waiter", edge.waiter}, {"waited_for", edge.waited_for}, {"why", edge.why}});
  }
  json["chain"] = std::move(chain);
  json["evidence"] = incident.evidence;
  Json rejected = Json::array();
  for (const Rejected& suspect : incident.rejected) {
    rejected.push_back({{"suspect", suspect.suspect}, {"reason", suspect.reason}});
  }
  json["rejected"] = std::move(rejected);
  return json;
}

// Colours are off the moment the user does not want them; letters stay.
class Painter {
 public:
  explicit Painter(bool on) : on_(on) {}
  std::string operator()(const char* code, const std::string& text) const {
    return on_ ? std::string("\x1b[") + code + "m" + text + "\x1b[0m" : text;
  }

 private:
  bool on_;
};

constexpr const char* kRed = "1;31";
constexpr const char* kYellow = "1;33";
constexpr const char* kGreen = "32";
constexpr const char* kBold = "1";

std::string Number(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

// What a person calls the component.
std::string Name(Component component) {
  switch (component) {
    case Component::kUnknown:
      return "cause unknown";
    case Component::kGpu:
      return "GPU";
    case Component::kNvlink:
      return "NVLink";
    case Component::kPcie:
      return "PCIe path";
    case Component::kNic:
      return "NIC";
    case Component::kFabric:
      return "network";
    case Component::kHost:
      return "host";
    case Component::kApp:
      return "application";
    case Component::kCcl:
      return "NCCL";
  }
  return "?";
}

std::string CommName(uint64_t id, const std::string& name) {
  return name.empty() ? "communicator " + HexText(id) : "\"" + PrintableText(name) + "\"";
}

std::string Candidates(const Culprit& culprit) {
  std::string out;
  for (size_t i = 0; i < culprit.candidates.size(); ++i) {
    if (i > 0) out += i + 1 == culprit.candidates.size() ? " or " : ", ";
    out += Name(culprit.candidates[i]);
  }
  return out;
}

class Writer {
 public:
  explicit Writer(const VerdictTextOptions& options) : options_(options), paint_(options.colour) {}

  void Add(const Incident& incident) {
    Headline(incident);
    if (!incident.summary.empty()) {
      AppendWrapped(out_, "  ", PrintableText(incident.summary));
    }
    out_ += '\n';
    for (const Culprit& culprit : incident.culprits) Add(culprit);
    if (incident.culprits.empty()) {
      Field("culprit", "none named: not enough evidence");
    }
    if (!incident.victims.empty()) {
      Field("victims", std::string(incident.victims.size() == 1 ? "rank " : "ranks ") +
                           RankList(incident.victims));
    }
    Field("seen in", CommName(incident.comm_id, incident.comm_name));
    Field("times", Times(incident));
    for (size_t i = 0; i < incident.chain.size(); ++i) {
      if (i == kMostItems) {
        Field("", "and " + std::to_string(incident.chain.size() - i) + " more of the kind");
        break;
      }
      Field(i == 0 ? "waiting" : "", Edge(incident.chain[i]));
    }
    for (size_t i = 0; i < incident.evidence.size(); ++i) {
      Item(i == 0 ? "evidence" : "", PrintableText(incident.evidence[i]));
    }
    for (size_t i = 0; i < incident.rejected.size(); ++i) {
      Item(i == 0 ? "rejected" : "", PrintableText(incident.rejected[i].suspect) + ": " +
                                         PrintableText(incident.rejected[i].reason));
    }
    out_ += '\n';
  }

  void Add(const std::vector<BlindSpot>& blind_spots) {
    if (blind_spots.empty()) return;
    out_ += paint_(kBold, "Not seen") + "\n";
    for (const BlindSpot& spot : blind_spots) {
      std::string text = PrintableText(spot.what);
      if (!spot.lost.empty()) text += ": " + PrintableText(spot.lost);
      AppendWrapped(out_, "  - ", text);
      if (!spot.fix.empty()) AppendWrapped(out_, "    to fix: ", PrintableText(spot.fix));
    }
  }

  void Line(const std::string& text) { out_ += text + "\n"; }
  std::string Take() { return std::move(out_); }
  const Painter& paint() const { return paint_; }

 private:
  // One line that answers: what is wrong, since when, whose fault.
  void Headline(const Incident& incident) {
    const bool open = !incident.cleared_ns;
    std::string text = "#" + std::to_string(incident.id);
    std::string since = Time(incident.onset_ns);
    if (open && options_.now_ns > incident.onset_ns) {
      since += ", for " + DurationText(options_.now_ns - incident.onset_ns) + " now";
    } else if (!open && *incident.cleared_ns >= incident.onset_ns) {
      since = "from " + since + ", over after " +
              DurationText(*incident.cleared_ns - incident.onset_ns);
    }
    if (open) since = "since " + since;
    std::string blame;
    for (const Culprit& culprit : incident.culprits) {
      if (!blame.empty()) blame += "; ";
      blame += CulpritText(culprit);
      if (!culprit.host.empty()) blame += ", " + PrintableText(culprit.host);
    }
    if (blame.empty()) blame = "cause not known, not enough evidence";
    const std::string first = paint_(open ? kRed : kYellow, KindName(incident.kind)) + " " + text + " ";
    // Bold for each word, so that a line break does not end the attribute.
    AppendWrapped(out_, first, since + ":");
    // The answer belongs on the first line when it fits there.
    const size_t line_start = out_.rfind('\n', out_.size() - 2) + 1;
    const std::string last = out_.substr(line_start, out_.size() - 1 - line_start);
    if (DisplayWidth(last) + 1 + DisplayWidth(blame) <= kColumns) {
      out_.back() = ' ';
      out_ += paint_(kBold, blame) + "\n";
    } else {
      const size_t at = out_.size();
      AppendWrapped(out_, "  ", blame);
      std::string wrapped = out_.substr(at);
      out_.resize(at);
      size_t from = 0;
      while (from < wrapped.size()) {
        const size_t end = wrapped.find('\n', from);
        out_ += "  " + paint_(kBold, wrapped.substr(from + 2, end - from - 2)) + "\n";
        from = end + 1;
      }
    }
  }

  void Add(const Culprit& culprit) {
    std::string text = CulpritText(culprit);
    if (!culprit.host.empty()) text += ", host " + PrintableText(culprit.host);
    if (culprit.pid != 0) text += ", pid " + std::to_string(culprit.pid);
    text += ", confidence " + Number("%.0f %%", Finite(culprit.confidence) * 100);
    Field("culprit", text);
    if (!culprit.where.empty()) Field("", "at " + PrintableText(culprit.where));
    std::string comms;
    for (const CommRank& comm : culprit.comms) {
      if (!comms.empty()) comms += ", ";
      comms += "rank " + std::to_string(comm.rank) + " of " + std::to_string(comm.nranks) + " in " +
               CommName(comm.comm_id, comm.comm_name);
    }
    if (!comms.empty()) Field("", comms);
    Field("", "cost so far: " + Number("%.3g", Finite(culprit.gpu_seconds_lost)) +
                  " GPU-seconds of waiting");
  }

  std::string Edge(const WaitEdge& edge) const {
    if (!edge.why.empty()) return PrintableText(edge.why);
    return "rank " + std::to_string(edge.waiter) + " waits for rank " +
           std::to_string(edge.waited_for);
  }

  std::string Times(const Incident& incident) const {
    std::string text = "onset " + Time(incident.onset_ns);
    text += ", detected " + After(incident.detected_ns, incident.onset_ns);
    text += ", verdict " + After(incident.verdict_ns, incident.onset_ns);
    text += incident.cleared_ns ? ", cleared " + After(*incident.cleared_ns, incident.onset_ns)
                                : ", not cleared yet";
    return text;
  }

  std::string After(uint64_t t_ns, uint64_t onset_ns) const {
    return t_ns >= onset_ns ? "+" + DurationText(t_ns - onset_ns) : Time(t_ns);
  }

  std::string Time(uint64_t t_ns) const {
    const double from = static_cast<double>(options_.start_ns);
    return Number("%.3f s", (static_cast<double>(t_ns) - from) / 1e9);
  }

  void Field(const std::string& label, const std::string& text) {
    std::string first = "  " + label;
    first.append(label.size() < kLabelWidth ? kLabelWidth - label.size() : 1, ' ');
    AppendWrapped(out_, first, text);
  }

  void Item(const std::string& label, const std::string& text) {
    std::string first = "  " + label;
    first.append(kLabelWidth - label.size(), ' ');
    AppendWrapped(out_, first + "- ", text);
  }

  static constexpr size_t kColumns = 80;
  static constexpr size_t kLabelWidth = 10;
  static constexpr size_t kMostItems = 24;  // of the chain; the JSON form has all
  const VerdictTextOptions& options_;
  Painter paint_;
  std::string out_;
};

}  // namespace

const char* KindName(IncidentKind kind) {
  switch (kind) {
    case IncidentKind::kStuck:
      return "STUCK";
    case IncidentKind::kSlow:
      return "SLOW";
    case IncidentKind::kAbsent:
      return "ABSENT";
    case IncidentKind::kMismatch:
      return "MISMATCH";
    case IncidentKind::kDead:
      return "DEAD";
  }
  return "?";
}

std::string CulpritText(const Culprit& culprit) {
  std::string rank = culprit.rank >= 0 ? "rank " + std::to_string(culprit.rank)
                                       : "process " + std::to_string(culprit.pid);
  if (culprit.component == Component::kUnknown) {
    return culprit.candidates.empty() ? rank + " (" + Name(culprit.component) + ")"
                                      : rank + " (" + Candidates(culprit) + ")";
  }
  return Name(culprit.component) + " of " + rank;
}

std::string VerdictJson(const std::vector<Incident>& incidents,
                        const std::vector<BlindSpot>& blind_spots, int indent) {
  Json json = {{"schema_version", kVerdictSchemaVersion}};
  Json list = Json::array();
  for (const Incident& incident : incidents) list.push_back(ToJson(incident));
  json["incidents"] = std::move(list);
  Json spots = Json::array();
  for (const BlindSpot& spot : blind_spots) {
    spots.push_back({{"what", spot.what}, {"lost", spot.lost}, {"fix", spot.fix}});
  }
  json["blind_spots"] = std::move(spots);
  // Names come from other processes: text that is not UTF-8 must not throw.
  return json.dump(indent < 0 ? -1 : indent, ' ', false, Json::error_handler_t::replace);
}

std::string VerdictText(const std::vector<Incident>& incidents,
                        const std::vector<BlindSpot>& blind_spots,
                        const VerdictTextOptions& options) {
  Writer writer(options);
  if (incidents.empty()) {
    writer.Line(writer.paint()(kGreen, "No incident: nothing is stuck or slow in what was seen."));
    if (!blind_spots.empty()) writer.Line("");
  }
  for (const Incident& incident : incidents) writer.Add(incident);
  writer.Add(blind_spots);
  return writer.Take();
}

}  // namespace mycroft
