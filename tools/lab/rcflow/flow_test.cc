// SPDX-License-Identifier: Apache-2.0
#include "tools/lab/rcflow/flow.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace mycroft::lab {
namespace {

TEST(Flow, ADeviceThatIsNotThereIsNamed) {
  FlowOptions options;
  options.from = "no_such_device";
  auto result = RunFlow(options, stdout);
  ASSERT_FALSE(result.ok());
  // Where the machine has no RDMA at all, libibverbs says so before a name is looked for.
  EXPECT_THAT(std::string(result.status().message()),
              testing::AnyOf(testing::HasSubstr("no_such_device"),
                             testing::HasSubstr("cannot list RDMA devices")));
}

TEST(Flow, StatesHaveTheNamesOfTheSpecification) {
  EXPECT_STREQ(ToString(IBV_QPS_RESET), "RESET");
  EXPECT_STREQ(ToString(IBV_QPS_RTS), "RTS");
  EXPECT_STREQ(ToString(IBV_QPS_ERR), "ERR");
  EXPECT_STREQ(ToString(IBV_QPS_UNKNOWN), "unknown");
}

}  // namespace
}  // namespace mycroft::lab
