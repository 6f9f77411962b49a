// SPDX-License-Identifier: Apache-2.0
#include "userspace/attribute/incident.h"

namespace mycroft {

const char* ToString(IncidentKind kind) {
  switch (kind) {
    case IncidentKind::kStuck:
      return "stuck";
    case IncidentKind::kSlow:
      return "slow";
    case IncidentKind::kAbsent:
      return "absent";
    case IncidentKind::kMismatch:
      return "mismatch";
    case IncidentKind::kDead:
      return "dead";
  }
  return "stuck";
}

const char* ToString(Component component) {
  switch (component) {
    case Component::kUnknown:
      return "unknown";
    case Component::kGpu:
      return "gpu";
    case Component::kNvlink:
      return "nvlink";
    case Component::kPcie:
      return "pcie";
    case Component::kNic:
      return "nic";
    case Component::kFabric:
      return "fabric";
    case Component::kHost:
      return "host";
    case Component::kApp:
      return "app";
    case Component::kCcl:
      return "ccl";
  }
  return "unknown";
}

std::optional<IncidentKind> ParseIncidentKind(const std::string& text) {
  for (IncidentKind kind : {IncidentKind::kStuck, IncidentKind::kSlow, IncidentKind::kAbsent,
                            IncidentKind::kMismatch, IncidentKind::kDead}) {
    if (text == ToString(kind)) return kind;
  }
  return std::nullopt;
}

std::optional<Component> ParseComponent(const std::string& text) {
  for (Component component :
       {Component::kUnknown, Component::kGpu, Component::kNvlink, Component::kPcie, Component::kNic,
        Component::kFabric, Component::kHost, Component::kApp, Component::kCcl}) {
    if (text == ToString(component)) return component;
  }
  return std::nullopt;
}

}  // namespace mycroft
