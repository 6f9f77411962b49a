// SPDX-License-Identifier: Apache-2.0
//
// The HTTP endpoint that Prometheus scrapes: http://ADDRESS:PORT/metrics. No TLS,
// no authentication: an address that is not loopback must be allowed in so many words.
#ifndef MYCROFT_USERSPACE_REPORT_METRICS_ENDPOINT_H_
#define MYCROFT_USERSPACE_REPORT_METRICS_ENDPOINT_H_

#include <prometheus/collectable.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace mycroft {

// Not assigned by IANA, not in Prometheus' list of exporters, below the ephemeral ports.
inline constexpr uint16_t kDefaultMetricsPort = 19470;

struct ListenAddress {
  std::string host;  // numeric; IPv6 without brackets
  uint16_t port = kDefaultMetricsPort;
  bool loopback = true;
};

// "127.0.0.1:19470", "[::1]:19470", "localhost:19470", "19470" (on 127.0.0.1),
// "127.0.0.1" (default port), ":19470" (all addresses). InvalidArgument for the rest;
// host names other than localhost are not looked up. Port 0: any free one.
[[nodiscard]] absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text);

class MetricsEndpoint {
 public:
  // PermissionDenied for a public address without `allow_public`; Unavailable when it
  // cannot be bound. Serves until destroyed, from two threads.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Create(
      const ListenAddress& address, bool allow_public,
      std::shared_ptr<prometheus::Collectable> metrics);
  virtual ~MetricsEndpoint() = default;
  virtual std::string url() const = 0;
};

}  // namespace mycroft

#endif  // MYCROFT_USERSPACE_REPORT_METRICS_ENDPOINT_H_
