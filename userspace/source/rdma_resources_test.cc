// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/rdma_resources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>

#include <string>

namespace mycroft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Attribute(uint16_t type, std::string value) {
  std::string text(4, '\0');
  const auto size = static_cast<uint16_t>(4 + value.size());
  text[0] = static_cast<char>(size & 0xff);
  text[1] = static_cast<char>(size >> 8);
  text[2] = static_cast<char>(type & 0xff);
  text[3] = static_cast<char>(type >> 8);
  text += value;
  text.resize((text.size() + 3) & ~size_t{3});
  return text;
}
std::string Number(uint16_t type, uint32_t value) {
  return Attribute(type, std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
}
std::string Byte(uint16_t type, uint8_t value) {
  return Attribute(type, std::string(1, static_cast<char>(value)));
}

std::vector<RdmaQueuePair> Parse(const std::string& attributes) {
  const std::string message = std::string(sizeof(nlmsghdr), '\0') + attributes;
  std::vector<RdmaQueuePair> out;
  ParseRdmaQueuePairs(std::as_bytes(std::span(message)), &out);
  return out;
}

std::string Answer() {
  const std::string first =
      Number(RDMA_NLDEV_ATTR_PORT_INDEX, 1) + Number(RDMA_NLDEV_ATTR_RES_LQPN, 17) +
      Number(RDMA_NLDEV_ATTR_RES_RQPN, 23) + Byte(RDMA_NLDEV_ATTR_RES_TYPE, 2) +
      Byte(RDMA_NLDEV_ATTR_RES_STATE, 6) + Number(RDMA_NLDEV_ATTR_RES_PID, 4711);
  const std::string second =
      Number(RDMA_NLDEV_ATTR_RES_LQPN, 1) + Byte(RDMA_NLDEV_ATTR_RES_STATE, 3);
  return Number(RDMA_NLDEV_ATTR_DEV_INDEX, 0) +
         Attribute(RDMA_NLDEV_ATTR_DEV_NAME, std::string("rxeA\0", 5)) +
         Attribute(RDMA_NLDEV_ATTR_RES_QP | NLA_F_NESTED,
                   Attribute(RDMA_NLDEV_ATTR_RES_QP_ENTRY, first) +
                       Attribute(RDMA_NLDEV_ATTR_RES_QP_ENTRY, second));
}

TEST(RdmaResources, QueuePairsOfAnAnswer) {
  const RdmaQueuePair first{
      .device = "rxeA", .port = 1, .number = 17, .remote_number = 23, .state = 6, .pid = 4711};
  const RdmaQueuePair second{.device = "rxeA", .number = 1, .state = 3};
  EXPECT_THAT(Parse(Answer()), ElementsAre(first, second));
}

TEST(RdmaResources, DamagedAnswers) {
  EXPECT_THAT(Parse(""), IsEmpty());
  EXPECT_THAT(Parse(std::string(64, '\xff')), IsEmpty());
  EXPECT_THAT(Parse(std::string(64, '\0')), IsEmpty());
  const std::string whole = Answer();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_LE(Parse(whole.substr(0, size)).size(), 2u);
    std::string changed = whole;
    changed[size] = static_cast<char>(changed[size] ^ 0x55);
    EXPECT_LE(Parse(changed).size(), 2u);
  }
}

TEST(RdmaResources, ThisHostAnswersOrHasNone) {
  const auto qps = ReadRdmaQueuePairs();
  EXPECT_LE(qps.value_or(std::vector<RdmaQueuePair>()).size(), 16'384u);
}

}  // namespace
}  // namespace mycroft
