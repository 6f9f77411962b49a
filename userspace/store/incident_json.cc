// SPDX-License-Identifier: Apache-2.0
#include "userspace/store/incident_json.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace mycroft {
namespace {

using Json = nlohmann::ordered_json;

// nlohmann-json throws for text that is not UTF-8 only when it writes: ask it.
bool IsUtf8(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::ignore).size() ==
         Json(text).dump(-1, ' ', false, Json::error_handler_t::replace).size();
}

Json Text(const std::string& text) {
  if (IsUtf8(text)) return text;
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : text) {
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return {{"hex", hex}};
}

Json Number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

// Reads with a flag instead of exceptions: wrong types are remembered.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {}

  std::string Text(const char* key) { return AsText(Get(key)); }

  double Number(const char* key) {
    const Json& value = Get(key);
    if (value.is_number()) return value.get<double>();
    const std::string text = AsText(value);
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
    ok_ = false;
    return 0;
  }

  template <class T>
  T Integer(const char* key) {
    return AsInteger<T>(Get(key));
  }

  const Json& List(const char* key) {
    const Json& value = Get(key);
    static const Json kEmpty = Json::array();
    if (value.is_array()) return value;
    ok_ = false;
    return kEmpty;
  }

  template <class T>
  T AsInteger(const Json& value) {
    if (value.is_number_unsigned()) {
      const uint64_t number = value.get<uint64_t>();
      if (number <= static_cast<uint64_t>(std::numeric_limits<T>::max())) {
        return static_cast<T>(number);
      }
    } else if (value.is_number_integer() && std::is_signed_v<T>) {
      const int64_t number = value.get<int64_t>();
      if (number >= static_cast<int64_t>(std::numeric_limits<T>::min())) {
        return static_cast<T>(number);
      }
    }
    ok_ = false;
    return 0;
  }

  std::string AsText(const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    std::string text;
    const auto hex = value.is_object() ? value.find("hex") : value.end();
    if (!value.is_object() || hex == value.end() || !hex->is_string()) {
      ok_ = false;
      return text;
    }
    const auto& digits = hex->get_ref<const std::string&>();
    for (size_t i = 0; i + 1 < digits.size(); i += 2) {
      const int high = Digit(digits[i]), low = Digit(digits[i + 1]);
      if (high < 0 || low < 0) ok_ = false;
      text += static_cast<char>(high * 16 + low);
    }
    return text;
  }

  Component AsComponent(const Json& value) {
    const std::optional<Component> component = ParseComponent(AsText(value));
    if (!component) ok_ = false;
    return component.value_or(Component::kUnknown);
  }

  const Json& Get(const char* key) {
    static const Json kNull;
    const auto it = json_.is_object() ? json_.find(key) : json_.end();
    if (json_.is_object() && it != json_.end()) return *it;
    ok_ = false;
    return kNull;
  }

  bool ok() const { return ok_; }
  void Require(bool good) { ok_ = ok_ && good; }

 private:
  static int Digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  }
  const Json& json_;
  bool ok_ = true;
};

}  // namespace

std::string IncidentToJson(const Incident& incident) {
  Json culprits = Json::array();
  for (const Culprit& culprit : incident.culprits) {
    Json candidates = Json::array(), comms = Json::array();
    for (Component candidate : culprit.candidates) candidates.push_back(ToString(candidate));
    for (const CommRank& comm : culprit.comms) {
      comms.push_back({{"comm_id", comm.comm_id},
                       {"comm_name", Text(comm.comm_name)},
                       {"rank", comm.rank},
                       {"nranks", comm.nranks}});
    }
    culprits.push_back({{"rank", culprit.rank},
                        {"host", Text(culprit.host)},
                        {"pid", culprit.pid},
                        {"component", ToString(culprit.component)},
                        {"candidates", std::move(candidates)},
                        {"confidence", Number(culprit.confidence)},
                        {"gpu_seconds_lost", Number(culprit.gpu_seconds_lost)},
                        {"where", Text(culprit.where)},
                        {"comms", std::move(comms)}});
  }
  Json chain = Json::array(), evidence = Json::array(), rejected = Json::array();
  for (const WaitEdge& edge : incident.chain) {
    chain.push_back(
        {{"waiter", edge.waiter}, {"waited_for", edge.waited_for}, {"why", Text(edge.why)}});
  }
  for (const std::string& item : incident.evidence) evidence.push_back(Text(item));
  for (const Rejected& suspect : incident.rejected) {
    rejected.push_back({{"suspect", Text(suspect.suspect)}, {"reason", Text(suspect.reason)}});
  }
  Json json = {{"id", incident.id},
               {"kind", ToString(incident.kind)},
               {"onset_ns", incident.onset_ns},
               {"detected_ns", incident.detected_ns},
               {"verdict_ns", incident.verdict_ns},
               {"cleared_ns", nullptr},
               {"comm_id", incident.comm_id},
               {"comm_name", Text(incident.comm_name)},
               {"summary", Text(incident.summary)},
               {"culprits", std::move(culprits)},
               {"victims", incident.victims},
               {"chain", std::move(chain)},
               {"evidence", std::move(evidence)},
               {"rejected", std::move(rejected)}};
  if (incident.cleared_ns) json["cleared_ns"] = *incident.cleared_ns;
  return json.dump();
}

absl::StatusOr<Incident> IncidentFromJson(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Reader reader(json);
  Incident incident;
  incident.id = reader.Integer<uint64_t>("id");
  const std::optional<IncidentKind> kind = ParseIncidentKind(reader.Text("kind"));
  reader.Require(kind.has_value());
  incident.kind = kind.value_or(IncidentKind::kStuck);
  incident.onset_ns = reader.Integer<uint64_t>("onset_ns");
  incident.detected_ns = reader.Integer<uint64_t>("detected_ns");
  incident.verdict_ns = reader.Integer<uint64_t>("verdict_ns");
  const Json& cleared = reader.Get("cleared_ns");
  if (!cleared.is_null()) incident.cleared_ns = reader.AsInteger<uint64_t>(cleared);
  incident.comm_id = reader.Integer<uint64_t>("comm_id");
  incident.comm_name = reader.Text("comm_name");
  incident.summary = reader.Text("summary");
  for (const Json& item : reader.List("culprits")) {
    Reader part(item);
    Culprit culprit;
    culprit.rank = part.Integer<int32_t>("rank");
    culprit.host = part.Text("host");
    culprit.pid = part.Integer<uint32_t>("pid");
    culprit.component = part.AsComponent(part.Get("component"));
    for (const Json& candidate : part.List("candidates")) {
      culprit.candidates.push_back(part.AsComponent(candidate));
    }
    culprit.confidence = part.Number("confidence");
    culprit.gpu_seconds_lost = part.Number("gpu_seconds_lost");
    culprit.where = part.Text("where");
    for (const Json& comm_item : part.List("comms")) {
      Reader comm(comm_item);
      culprit.comms.push_back({comm.Integer<uint64_t>("comm_id"), comm.Text("comm_name"),
                               comm.Integer<int32_t>("rank"), comm.Integer<int32_t>("nranks")});
      part.Require(comm.ok());
    }
    reader.Require(part.ok());
    incident.culprits.push_back(std::move(culprit));
  }
  for (const Json& item : reader.List("victims")) {
    incident.victims.push_back(reader.AsInteger<int32_t>(item));
  }
  for (const Json& item : reader.List("chain")) {
    Reader edge(item);
    incident.chain.push_back(
        {edge.Integer<int32_t>("waiter"), edge.Integer<int32_t>("waited_for"), edge.Text("why")});
    reader.Require(edge.ok());
  }
  for (const Json& item : reader.List("evidence")) incident.evidence.push_back(reader.AsText(item));
  for (const Json& item : reader.List("rejected")) {
    Reader suspect(item);
    incident.rejected.push_back({suspect.Text("suspect"), suspect.Text("reason")});
    reader.Require(suspect.ok());
  }
  if (!reader.ok()) return absl::DataLossError("incident in the recording is damaged");
  return incident;
}

}  // namespace mycroft
