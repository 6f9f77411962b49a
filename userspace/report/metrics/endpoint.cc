// SPDX-License-Identifier: Apache-2.0
#include "userspace/report/metrics/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <prometheus/exposer.h>

#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "userspace/base/text.h"

namespace mycroft {
namespace {

bool ParsePort(const std::string& text, uint16_t& port) {
  if (text.empty() || text.size() > 5) return false;
  unsigned long value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<unsigned long>(c - '0');
  }
  if (value > 65535) return false;
  port = static_cast<uint16_t>(value);
  return true;
}

std::string HostPort(const ListenAddress& address, uint16_t port) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(port);
}

class Endpoint : public MetricsEndpoint {
 public:
  Endpoint(const ListenAddress& address, std::shared_ptr<prometheus::Collectable> metrics)
      : metrics_(std::move(metrics)), exposer_(HostPort(address, address.port), 2) {
    exposer_.RegisterCollectable(metrics_);
    const std::vector<int> ports = exposer_.GetListeningPorts();
    url_ = "http://" +
           HostPort(address, ports.empty() ? address.port : static_cast<uint16_t>(ports[0])) +
           "/metrics";
  }
  std::string url() const override { return url_; }

 private:
  std::shared_ptr<prometheus::Collectable> metrics_;
  prometheus::Exposer exposer_;
  std::string url_;
};

}  // namespace

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text) {
  const absl::Status bad = absl::InvalidArgumentError(
      QuotedText(text) + " is not an address to listen on: write for example 127.0.0.1:" +
      std::to_string(kDefaultMetricsPort) + " or [::1]:" + std::to_string(kDefaultMetricsPort));
  ListenAddress address;
  std::string host = text, port;
  if (text.empty()) return bad;
  if (text[0] == '[') {
    const size_t end = text.find(']');
    if (end == std::string::npos) return bad;
    host = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (!port.empty() && port[0] != ':') return bad;
    if (!port.empty()) port.erase(0, 1);
    if (port.empty() && end + 1 < text.size()) return bad;
    if (host.find(':') == std::string::npos) return bad;
  } else if (text.find_first_not_of("0123456789") == std::string::npos) {
    host = "127.0.0.1";
    port = text;
  } else if (const size_t colon = text.find(':'); colon != std::string::npos) {
    if (text.find(':', colon + 1) != std::string::npos) return bad;  // IPv6 without brackets
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) return bad;
    if (host.empty()) host = "0.0.0.0";
  }
  if (!port.empty() && !ParsePort(port, address.port)) return bad;
  if (host == "localhost") host = "127.0.0.1";
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    address.loopback = (ntohl(v4.s_addr) >> 24) == 127;
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    address.loopback = std::memcmp(&v6, &in6addr_loopback, sizeof v6) == 0;
  } else {
    return bad;
  }
  address.host = host;
  return address;
}

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Create(
    const ListenAddress& address, bool allow_public,
    std::shared_ptr<prometheus::Collectable> metrics) {
  const std::string where = HostPort(address, address.port);
  if (!address.loopback && !allow_public) {
    return absl::PermissionDeniedError(
        where +
        " is not a loopback address, and the metrics have no password: listen on "
        "127.0.0.1, or allow it with --listen-public");
  }
  try {
    return std::unique_ptr<MetricsEndpoint>(
        std::make_unique<Endpoint>(address, std::move(metrics)));
  } catch (const std::exception& e) {
    return absl::UnavailableError("cannot listen on " + where + " (" + e.what() +
                                  "): is the port taken, or the address not of this host?");
  }
}

}  // namespace mycroft
