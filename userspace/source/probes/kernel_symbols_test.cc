// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/kernel_symbols.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mycroft {
namespace {

TEST(KernelSymbolsTest, TheFunctionAtOrBelowAnAddress) {
  auto symbols = KernelSymbols::Parse(
      "ffffffff81000100 T second\n"
      "ffffffff81000000 T first\n"
      "ffffffff81000000 t alias_of_first\n"
      "ffffffff81000080 D data\n"
      "ffffffffc0000000 t of_module\t[rdma_rxe]\n");
  ASSERT_TRUE(symbols.ok()) << symbols.status();
  EXPECT_EQ(symbols->size(), 4u);
  EXPECT_EQ(symbols->Name(0xffffffff80ffffff), "");
  EXPECT_EQ(symbols->Name(0xffffffff81000000), "first");
  EXPECT_EQ(symbols->Name(0xffffffff810000ff), "first");
  EXPECT_EQ(symbols->Name(0xffffffff81000100), "second");
  EXPECT_EQ(symbols->Name(UINT64_MAX), "of_module [rdma_rxe]");
}

TEST(KernelSymbolsTest, HiddenAddressesAreARefusal) {
  const auto symbols = KernelSymbols::Parse("0000000000000000 T first\n0000000000000000 t b\n");
  EXPECT_EQ(symbols.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(symbols.status().message(), testing::HasSubstr("kptr_restrict"));
  EXPECT_FALSE(KernelSymbols::Parse("").ok());
  EXPECT_FALSE(KernelSymbols::Read(-1).ok());
}

TEST(KernelSymbolsTest, MalformedLinesAreSkipped) {
  auto symbols = KernelSymbols::Parse(
      "\n\nxyz\nffffffff81000000\nffffffff81000000 T\nffffffff81000000 T \n"
      "fffffffffffffffffffff T too_long\n ffffffff81000000 T indented\nffffffff81000000 T x");
  ASSERT_TRUE(symbols.ok()) << symbols.status();
  EXPECT_EQ(symbols->size(), 1u);
  EXPECT_EQ(symbols->Name(0xffffffff81000001), "x");
}

}  // namespace
}  // namespace mycroft
