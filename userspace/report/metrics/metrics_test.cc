// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <set>
#include <sstream>

#include "userspace/attribute/pipeline.h"
#include "userspace/report/metrics/endpoint.h"
#include "userspace/report/metrics/job_metrics.h"
#include "userspace/report/testing/synthetic_job.h"
#include "userspace/report/top/testing.h"

namespace mycroft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A plain HTTP GET, so that what Prometheus sees is what is tested.
std::string Get(const std::string& url) {
  const size_t colon = url.rfind(':');
  const int port = std::stoi(url.substr(colon + 1));
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return "";
  const std::string request = "GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n";
  EXPECT_EQ(::write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string out;
  char buffer[4096];
  for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;) {
    out.append(buffer, static_cast<size_t>(n));
  }
  ::close(fd);
  const size_t body = out.find("\r\n\r\n");
  return body == std::string::npos ? "" : out.substr(body + 4);
}

// Series -> value, with the checks that a scraper makes.
std::map<std::string, double> Parse(const std::string& text) {
  std::map<std::string, double> series;
  std::set<std::string> typed;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# TYPE ", 0) == 0) {
      EXPECT_TRUE(typed.insert(line.substr(7, line.find(' ', 7) - 7)).second) << line;
      continue;
    }
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    const std::string key = line.substr(0, space);
    EXPECT_TRUE(series.emplace(key, std::stod(line.substr(space + 1))).second) << "twice: " << key;
    const std::string name = key.substr(0, key.find('{'));
    if (name.rfind("exposer_", 0) == 0) continue;  // of the server itself
    EXPECT_EQ(name.rfind("mycroft_", 0), 0u) << name;
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos);
  }
  return series;
}

// The page as the endpoint writes it; the endpoint itself has a test of its own, as it
// takes two seconds to stop.
std::string Scrape(const std::shared_ptr<JobMetrics>& metrics) {
  return prometheus::TextSerializer().Serialize(metrics->Collect());
}

TEST(JobMetrics, ShowsTheStallAndItsCulprit) {
  auto metrics = std::make_shared<JobMetrics>(MetricsOptions{"1.2.3", "abc", 512});
  const TopData data = StuckSample();
  metrics->Update(data.job, data.incidents, data.blind_spots.size());
  const std::string text = Scrape(metrics);
  const auto series = Parse(text);
  EXPECT_EQ(series.at("mycroft_build_info{version=\"1.2.3\",revision=\"abc\"}"), 1);
  EXPECT_EQ(
      series.at("mycroft_stall_active{verdict=\"gpu\",kind=\"stuck\",rank=\"2\",host=\"node-b\"}"),
      1);
  EXPECT_EQ(series.at("mycroft_stall_total{verdict=\"gpu\",kind=\"stuck\"}"), 1);
  EXPECT_EQ(series.at("mycroft_stall_total{verdict=\"unknown\",kind=\"slow\"}"), 1);
  EXPECT_EQ(series.at("mycroft_stall_detect_seconds_count"), 2);
  EXPECT_NEAR(series.at("mycroft_stall_detect_seconds_sum"), 1.5, 1e-6);
  EXPECT_NEAR(
      series.at("mycroft_nccl_inflight_age_seconds{op=\"AllReduce\",comm=\"9a40ddbf57b04e\","
                "rank=\"0\",host=\"node-a\"}"),
      12.34, 1e-6);
  EXPECT_EQ(series.at("mycroft_events_dropped_total{source=\"stale_handle\"}"), 2);
  EXPECT_EQ(series.at("mycroft_processes"), 4);
  EXPECT_EQ(series.at("mycroft_communicators"), 3);
  EXPECT_EQ(series.at("mycroft_blind_spots"), 1);
  for (const auto& [key, value] : series) {
    EXPECT_THAT(key, Not(HasSubstr("slow\",rank")));  // cleared: not active
    EXPECT_THAT(key, Not(HasSubstr("pid")));
    EXPECT_THAT(key, Not(HasSubstr("4713")));
  }
  EXPECT_THAT(text, Not(HasSubstr("duplicate_step")));
}

TEST(JobMetrics, HardwareOfTheJob) {
  auto metrics = std::make_shared<JobMetrics>(MetricsOptions{});
  const TopData data = HardwareSample4();
  metrics->Update(data.job, {}, 0);
  const auto series = Parse(Scrape(metrics));
  const std::string gpu = "{host=\"node-a\",pci_bus_id=\"0000:3b:00.0\",kind=\"GPU\"}";
  const std::string root = "{host=\"node-a\",pci_bus_id=\"0000:3a:00.0\",kind=\"root port\"}";
  EXPECT_EQ(series.at("mycroft_pcie_link_width" + gpu), 8);
  EXPECT_EQ(series.at("mycroft_pcie_link_speed_gts" + gpu), 32);
  EXPECT_EQ(series.at("mycroft_pcie_link_degraded" + gpu), 1);
  EXPECT_EQ(series.at("mycroft_pcie_link_degraded" + root), 0);  // shared, once
  EXPECT_EQ(series.at("mycroft_pcie_device_present" + gpu), 1);
  EXPECT_EQ(series.at("mycroft_pcie_aer_errors_total{host=\"node-a\",pci_bus_id="
                      "\"0000:3b:00.0\",severity=\"correctable\"}"),
            3);
  EXPECT_EQ(series.at("mycroft_rdma_port_active{host=\"node-a\",device=\"mlx5_0\",port=\"1\"}"),
            0);
  EXPECT_EQ(series.count("mycroft_rdma_port_active{host=\"node-a\",device=\"mlx5_1\",port=\"1\"}"),
            0u);  // not readable: no statement
  EXPECT_EQ(series.at("mycroft_probe_attached{probe=\"verbs.completions\",level=\"deep\"}"), 1);
  EXPECT_EQ(series.at("mycroft_probe_attached{probe=\"host.runq\",level=\"always\"}"), 0);
}

TEST(JobMetrics, HealthOfTheGpus) {
  auto metrics = std::make_shared<JobMetrics>(MetricsOptions{});
  TopData data = HardwareSample4();
  GpuSample& gpu = data.job.devices[0].gpu.emplace();
  gpu.sm_mhz = 345;
  gpu.clock_reasons = clock_reason::kHardwareThermal;
  gpu.temperature_c = 89;
  gpu.ecc_uncorrected = 2;
  gpu.nvlinks = {{0, true, {}, {}, {}}, {1, false, {}, {}, {}}};
  metrics->Update(data.job, {}, 0);
  auto series = Parse(Scrape(metrics));
  const std::string of = "{host=\"node-a\",pci_bus_id=\"0000:3b:00.0\"";
  EXPECT_EQ(series.at("mycroft_gpu_clock_mhz" + of + ",clock=\"sm\"}"), 345);
  EXPECT_EQ(series.count("mycroft_gpu_clock_mhz" + of + ",clock=\"memory\"}"), 0u);
  EXPECT_EQ(series.count("mycroft_gpu_power_watts" + of + "}"), 0u);  // unknown is not zero
  EXPECT_EQ(series.at("mycroft_gpu_temperature_celsius" + of + ",sensor=\"gpu\"}"), 89);
  EXPECT_EQ(series.at("mycroft_gpu_throttled" + of + ",reason=\"thermal\"}"), 1);
  EXPECT_EQ(series.at("mycroft_gpu_throttled" + of + ",reason=\"power_cap\"}"), 0);
  EXPECT_EQ(series.at("mycroft_gpu_ecc_errors_total" + of + ",kind=\"uncorrected\"}"), 2);
  EXPECT_EQ(series.at("mycroft_gpu_nvlinks_active" + of + "}"), 1);
  EXPECT_EQ(series.at("mycroft_gpu_lost" + of + "}"), 0);
  gpu.silent_since_ns = 5;
  gpu.hangs = true;
  metrics->Update(data.job, {}, 0);
  series = Parse(Scrape(metrics));
  EXPECT_EQ(series.at("mycroft_gpu_lost" + of + "}"), 1);
  EXPECT_EQ(series.count("mycroft_gpu_clock_mhz" + of + ",clock=\"sm\"}"), 0u);  // old
}

TEST(JobMetrics, AClearedIncidentIsNoLongerActiveAndCountsOnce) {
  auto metrics = std::make_shared<JobMetrics>(MetricsOptions{});
  TopData data = StuckSample();
  for (int i = 0; i < 3; ++i) metrics->Update(data.job, data.incidents, 0);
  data.incidents[1].cleared_ns = data.job.t_ns;
  metrics->Update(data.job, data.incidents, 0);
  const auto series = Parse(Scrape(metrics));
  EXPECT_EQ(series.at("mycroft_stall_total{verdict=\"gpu\",kind=\"stuck\"}"), 1);
  for (const auto& [key, value] : series) EXPECT_THAT(key, Not(HasSubstr("stall_active{")));
}

TEST(JobMetrics, CountersDoNotFallWhenAProcessGoes) {
  auto metrics = std::make_shared<JobMetrics>(MetricsOptions{});
  JobView job;
  for (uint64_t lost : {5, 3, 4}) {
    job.lost[MC_LOSS_OP_EVICTED] = lost;
    metrics->Update(job, {}, 0);
  }
  metrics->SetRecordingLost(7);
  const auto series = Parse(Scrape(metrics));
  EXPECT_EQ(series.at("mycroft_events_dropped_total{source=\"op_evicted\"}"), 6);
  EXPECT_EQ(series.at("mycroft_events_dropped_total{source=\"recording\"}"), 7);
}

TEST(JobMetrics, DurationsOfAJobAreCountedOnce) {
  SyntheticOptions options;
  options.duration_s = 5;
  SyntheticJob job(options);
  auto metrics = std::make_shared<JobMetrics>(MetricsOptions{});
  std::set<std::pair<uint32_t, uint64_t>> ops;
  uint64_t snapshots = 0;
  for (;;) {
    auto next = job.Next();
    ASSERT_TRUE(next.ok());
    if (!*next) break;
    ++snapshots;
    for (const ProcessSample& process : (*next)->processes) {
      for (const OpSample& op : process.ops) ops.insert({process.key.pid, op.id});
    }
    metrics->Observe(**next);
    metrics->Observe(**next);  // the same again must change nothing
  }
  const auto series = Parse(Scrape(metrics));
  double count = 0, sum = 0;
  for (const auto& [key, value] : series) {
    if (key.rfind("mycroft_nccl_collective_duration_seconds_count", 0) == 0) count += value;
    if (key.rfind("mycroft_nccl_collective_duration_seconds_sum", 0) == 0) sum += value;
  }
  EXPECT_EQ(series.at("mycroft_samples_total"), 2 * static_cast<double>(snapshots));
  EXPECT_GT(count, 0.9 * static_cast<double>(ops.size()));
  EXPECT_LE(count, static_cast<double>(ops.size()));
  EXPECT_GT(sum / count, 1e-5);
  EXPECT_LT(sum / count, 0.2);
}

TEST(JobMetrics, TheNumberOfSeriesIsBounded) {
  auto metrics = std::make_shared<JobMetrics>(MetricsOptions{"", "", 10});
  TopData data = StuckSample();
  for (int32_t i = 4; i < 100; ++i) {
    data.job.comms[0].ranks.push_back(data.job.comms[0].ranks[0]);
    data.job.comms[0].ranks.back().job_rank = i;
  }
  metrics->Update(data.job, data.incidents, 0);
  const auto series = Parse(Scrape(metrics));
  int ages = 0;
  for (const auto& [key, value] : series) ages += key.find("inflight_age") != std::string::npos;
  EXPECT_EQ(ages, 10);
  EXPECT_EQ(series.at("mycroft_metric_series_dropped_total"), 90);
}

TEST(JobMetrics, LabelsAreEscaped) {
  auto metrics = std::make_shared<JobMetrics>(MetricsOptions{});
  TopData data = StuckSample();
  data.incidents[1].culprits[0].host = "a\"b\\c\nd";
  metrics->Update(data.job, data.incidents, 0);
  EXPECT_THAT(Scrape(metrics), HasSubstr("host=\"a\\\"b\\\\c?d\""));
}

TEST(ParseListenAddress, KnowsLoopbackFromPublic) {
  const auto parse = [](const char* text) { return ParseListenAddress(text).value(); };
  EXPECT_EQ(parse("127.0.0.1:80").port, 80);
  EXPECT_TRUE(parse("127.1.2.3:80").loopback);
  EXPECT_EQ(parse("8080").host, "127.0.0.1");
  EXPECT_EQ(parse("localhost").port, kDefaultMetricsPort);
  EXPECT_EQ(parse("[::1]:9").host, "::1");
  EXPECT_TRUE(parse("[::1]").loopback);
  EXPECT_FALSE(parse("[::]:9").loopback);
  EXPECT_FALSE(parse("0.0.0.0:9").loopback);
  EXPECT_FALSE(parse(":9").loopback);
  EXPECT_FALSE(parse("10.0.0.1:9").loopback);
  for (const char* text :
       {"", "x:1", "::1", "1.2.3.4:", "1.2.3.4:99999", "1.2.3.4:-1", "[::1", "[::1]x",
        "[1.2.3.4]:5", "999999", "a\nb:1", "127.0.0.1:80,0.0.0.0:81"}) {
    EXPECT_FALSE(ParseListenAddress(text).ok()) << text;
  }
}

TEST(MetricsEndpoint, RefusesAPublicAddressAndATakenPort) {
  auto metrics = std::make_shared<JobMetrics>(MetricsOptions{});
  auto refused = MetricsEndpoint::Create(ParseListenAddress("0.0.0.0:0").value(), false, metrics);
  EXPECT_TRUE(absl::IsPermissionDenied(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--listen-public"));
  auto first = MetricsEndpoint::Create(ParseListenAddress("127.0.0.1:0").value(), false, metrics);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string url = (*first)->url();
  const std::string port = url.substr(17, url.rfind('/') - 17);
  EXPECT_EQ(Parse(Get(url)).at("mycroft_processes"), 0);
  EXPECT_EQ(Parse(Get(url)).at("mycroft_samples_total"), 0);
  auto second = MetricsEndpoint::Create(ParseListenAddress(port).value(), false, metrics);
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(port));
  EXPECT_TRUE(MetricsEndpoint::Create(ParseListenAddress("0.0.0.0:0").value(), true, metrics).ok());
}

}  // namespace
}  // namespace mycroft
