// SPDX-License-Identifier: Apache-2.0
//
// ElfImage, FindProviderOps and FindProbePoint on the provider libraries of this machine
// and on bytes that are no library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>

#include "userspace/source/probes/elf_image.h"
#include "userspace/source/probes/ops_finder.h"
#include "userspace/source/probes/probe_point.h"

namespace mycroft {
namespace {

const char kProviders[] = "/usr/lib/x86_64-linux-gnu/libibverbs/";
const char kVerbs[] = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";

std::vector<char> ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::vector<char>(std::istreambuf_iterator<char>(in), {});
}

// Debian 12 only: the figures below are those of its rdma-core 44.0.
bool IsDebian44() {
  return access("/usr/share/doc/ibverbs-providers", F_OK) == 0 &&
         access("/usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0", F_OK) == 0;
}

TEST(OpsFinderTest, LayoutsHaveTheShapeOfEachRelease) {
  // Members and index of poll_cq, counted in libibverbs/driver.h of each release.
  const struct {
    int version, members, poll_cq;
  } known[] = {{22, 66, 49}, {28, 67, 50}, {31, 73, 52}, {33, 72, 52}, {34, 73, 52},
               {35, 75, 53}, {36, 76, 53}, {44, 76, 53}, {58, 76, 53}, {59, 79, 55},
               {62, 81, 56}, {64, 83, 58}, {65, 93, 62}};
  for (const auto& k : known) {
    EXPECT_EQ(OpsLayoutOf(k.version).members, k.members) << k.version;
    EXPECT_EQ(OpsLayoutOf(k.version).poll_cq, k.poll_cq) << k.version;
  }
}

TEST(OpsFinderTest, DebianProvidersAsReadAtRunTime) {
  if (!IsDebian44()) GTEST_SKIP() << "SKIPPED: needs ibverbs-providers 44.0";
  auto rxe = ElfImage::FromFile(std::string(kProviders) + "librxe-rdmav34.so");
  ASSERT_TRUE(rxe.ok()) << rxe.status();
  auto ops = FindProviderOps(*rxe);
  ASSERT_TRUE(ops.ok()) << ops.status();
  // Equal to the pointers in ibv_context.ops of a process that had an rxe device open.
  EXPECT_EQ(ops->table, 0x7a00u);
  EXPECT_EQ(ops->post_send, 0x3cc0u);
  EXPECT_EQ(ops->poll_cq, 0x2ca0u);
  EXPECT_EQ(ops->post_recv, 0x4550u);
  EXPECT_EQ(ops->post_srq_recv, 0x44e0u);
  EXPECT_EQ(ops->since_version, 36);
  EXPECT_EQ(ops->anchors, 3);
  auto mlx5 = ElfImage::FromFile(std::string(kProviders) + "libmlx5-rdmav34.so");
  ASSERT_TRUE(mlx5.ok()) << mlx5.status();
  ops = FindProviderOps(*mlx5);
  ASSERT_TRUE(ops.ok()) << ops.status();
  EXPECT_EQ(ops->table, 0x795a0u);
  EXPECT_EQ(ops->post_send, 0x552e0u);
  EXPECT_EQ(ops->poll_cq, 0x1da50u);
  EXPECT_EQ(ops->post_recv, 0x55d50u);
  EXPECT_EQ(ops->req_notify_cq, 0x1f970u);
}

TEST(OpsFinderTest, EveryDebianProviderIsFoundOrSaysWhyNot) {
  if (!IsDebian44()) GTEST_SKIP() << "SKIPPED: needs ibverbs-providers 44.0";
  for (const char* name : {"mlx4", "mlx5", "bnxt_re", "irdma", "efa", "siw", "vmw_pvrdma", "qedr",
                           "ocrdma", "erdma", "mana", "rxe"}) {
    SCOPED_TRACE(name);
    auto image = ElfImage::FromFile(std::string(kProviders) + "lib" + name + "-rdmav34.so");
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_TRUE(image->ImportsPrefix("verbs_register_driver"));
    auto ops = FindProviderOps(*image);
    ASSERT_TRUE(ops.ok()) << ops.status();
    for (uint64_t f : {ops->post_send, ops->post_recv, ops->poll_cq})
      EXPECT_TRUE(image->IsFunctionStart(f));
    for (uint64_t f : {ops->post_send, ops->post_recv, ops->poll_cq}) {
      const ProbePoint point = FindProbePoint(*image, f, false);
      printf("%-12s %6lx %s at +%lu %s\n", name, f, point.instruction.c_str(), point.address - f,
             point.why.c_str());
    }
    // mana has no fast path of its own: its functions are `mov eax, EOPNOTSUPP; ret`.
    EXPECT_EQ(FindProbePoint(*image, ops->post_send, false).cheap, std::string(name) != "mana");
  }
  for (const char* name : {"hns", "cxgb4"}) {
    auto image = ElfImage::FromFile(std::string(kProviders) + "lib" + name + "-rdmav34.so");
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_FALSE(FindProviderOps(*image).ok()) << name;
  }
}

TEST(ElfImageTest, BothVersionsOfAFunction) {
  if (!IsDebian44()) GTEST_SKIP() << "SKIPPED: needs libibverbs1 44.0";
  auto image = ElfImage::FromFile(kVerbs);
  ASSERT_TRUE(image.ok()) << image.status();
  std::vector<uint64_t> offsets;
  for (const ElfFunction& f : image->Exports("ibv_open_device")) offsets.push_back(f.offset);
  EXPECT_THAT(offsets, testing::UnorderedElementsAre(0x11b60, 0x10c90));
  EXPECT_EQ(image->Exports("ibv_open_device")[0].version, "IBVERBS_1.1");
  EXPECT_EQ(image->Exports("ibv_open_device")[1].version, "IBVERBS_1.0");
  EXPECT_EQ(image->Exports("ibv_cmd_reg_mr")[0].version, "IBVERBS_PRIVATE_34");
  // All that the verbs probes attach to have a cheap place.
  for (const char* name : {"ibv_cmd_create_qp", "ibv_cmd_create_qp_ex", "ibv_cmd_create_qp_ex2",
                           "ibv_cmd_destroy_qp", "ibv_modify_qp", "ibv_cmd_reg_mr",
                           "ibv_cmd_reg_dmabuf_mr", "ibv_get_async_event", "ibv_ack_async_event"}) {
    const uint64_t address = image->Exports(name)[0].address;
    EXPECT_TRUE(FindProbePoint(*image, address, false).cheap)
        << name << ": " << FindProbePoint(*image, address, false).why;
    if (std::string(name) != "ibv_ack_async_event") {
      EXPECT_TRUE(FindProbePoint(*image, address, true).cheap)
          << name << ": " << FindProbePoint(*image, address, true).why;
    }
  }
  EXPECT_TRUE(image->Exports("ibv_open_devic").empty());
  EXPECT_EQ(image->Exports("ibv_cmd_reg_mr").size(), 1u);
  // Its version 1.1 is `xor esi,esi; jmp`: the return probe moves to the jmp.
  const ProbePoint point = FindProbePoint(*image, 0x11b60, true);
  EXPECT_TRUE(point.cheap) << point.why;
  EXPECT_EQ(point.address, 0x11b62u);
  EXPECT_FALSE(FindProbePoint(*image, 0x11b60, false).cheap);
}

TEST(ElfImageTest, AddressesAndOffsets) {
  if (!IsDebian44()) GTEST_SKIP() << "SKIPPED: needs libibverbs1 44.0";
  auto image = ElfImage::FromFile(kVerbs);
  ASSERT_TRUE(image.ok()) << image.status();
  const ElfFunction f = image->Exports("ibv_cmd_reg_mr")[0];
  EXPECT_EQ(image->AddressOf(f.offset), f.address);
  EXPECT_FALSE(image->OffsetOf(UINT64_MAX).has_value());
  EXPECT_FALSE(image->AddressOf(UINT64_MAX).has_value());
  EXPECT_TRUE(image->Code(UINT64_MAX - 8, 64).empty());
  EXPECT_EQ(image->Code(f.address, 16).size(), 16u);
}

TEST(ElfImageTest, MalformedFilesAreErrors) {
  EXPECT_FALSE(ElfImage::FromBytes({}).ok());
  EXPECT_FALSE(ElfImage::FromBytes(std::vector<char>(64, 'x')).ok());
  EXPECT_FALSE(ElfImage::FromFile("/nowhere").ok());
  EXPECT_FALSE(ElfImage::FromFile("/proc/self").ok());
  EXPECT_FALSE(ElfImage::FromFile("/dev/zero").ok());
  EXPECT_EQ(ElfImage::FromFile("/proc/self/exe", 100).status().code(),
            absl::StatusCode::kOutOfRange);
}

TEST(ElfImageTest, CutAndCorruptedLibrariesAreNoCrash) {
  std::string path = std::string(kProviders) + "librxe-rdmav34.so";
  if (access(path.c_str(), R_OK) != 0) path = "/proc/self/exe";
  const std::vector<char> whole = ReadAll(path);
  ASSERT_GT(whole.size(), 1000u);
  const auto look = [](std::vector<char> bytes) {
    auto image = ElfImage::FromBytes(std::move(bytes));
    if (!image.ok()) return;
    for (const ElfFunction& f : image->Exports("ibv_open_device"))
      FindProbePoint(*image, f.address, true);
    if (auto ops = FindProviderOps(*image); ops.ok()) FindProbePoint(*image, ops->post_send, false);
  };
  std::mt19937 random(7);
  for (size_t cut = 0; cut < 200; ++cut)
    look({whole.begin(), whole.begin() + static_cast<long>(random() % whole.size())});
  for (int round = 0; round < 500; ++round) {
    std::vector<char> bytes = whole;
    for (int i = 0; i < 20; ++i) {
      // Most of all the headers, at both ends.
      const size_t where = random() % 3 == 0   ? random() % bytes.size()
                           : random() % 2 == 0 ? random() % 1024
                                               : bytes.size() - 1 - random() % 2048;
      bytes[where] = static_cast<char>(random());
    }
    look(std::move(bytes));
  }
}

std::vector<uint8_t> Code(std::initializer_list<int> bytes) {
  return std::vector<uint8_t>(bytes.begin(), bytes.end());
}

TEST(ProbePointTest, EmulatedFirstInstructions) {
  EXPECT_TRUE(FindProbePoint(Code({0x55}), 0x1000, false).cheap);              // push rbp
  EXPECT_TRUE(FindProbePoint(Code({0x41, 0x57}), 0x1000, false).cheap);        // push r15
  EXPECT_TRUE(FindProbePoint(Code({0x90}), 0x1000, false).cheap);              // nop
  EXPECT_TRUE(FindProbePoint(Code({0xe9, 0, 0, 0, 0}), 0x1000, false).cheap);  // jmp
}

TEST(ProbePointTest, MovesPastInstructionsThatLeaveTheArguments) {
  // endbr64; push rbp
  ProbePoint p = FindProbePoint(Code({0xf3, 0x0f, 0x1e, 0xfa, 0x55}), 0x1000, false);
  EXPECT_TRUE(p.cheap) << p.why;
  EXPECT_EQ(p.address, 0x1004u);
  // test rdi,rdi; je +1; push rbx: the kernel decides a conditional jump itself.
  EXPECT_EQ(FindProbePoint(Code({0x48, 0x85, 0xff, 0x74, 0x01, 0x53}), 0x1000, false).address,
            0x1003u);
  // mov rax,[rdi]; sub rsp,8; push rbx: an entry probe may, a return probe may not.
  const auto code = Code({0x48, 0x8b, 0x07, 0x48, 0x83, 0xec, 0x08, 0x53});
  p = FindProbePoint(code, 0x1000, false);
  EXPECT_TRUE(p.cheap) << p.why;
  EXPECT_EQ(p.address, 0x1007u);
  p = FindProbePoint(code, 0x1000, true);
  EXPECT_FALSE(p.cheap);
  EXPECT_THAT(p.why, testing::HasSubstr("stack pointer"));
  EXPECT_EQ(p.address, 0x1000u);
}

TEST(ProbePointTest, StaysWhereAnArgumentWouldBeLost) {
  // mov rdi,rsi; push rbx     xor edx,edx; push rbx
  EXPECT_THAT(FindProbePoint(Code({0x48, 0x89, 0xf7, 0x53}), 0x1000, false).why,
              testing::HasSubstr("argument"));
  EXPECT_FALSE(FindProbePoint(Code({0x31, 0xd2, 0x53}), 0x1000, false).cheap);
  EXPECT_TRUE(FindProbePoint(Code({0x31, 0xd2, 0x53}), 0x1000, false, 2).cheap);
  // mov rax,[rdi]; jmp [rax+8]: a jump through memory is not emulated.
  EXPECT_FALSE(FindProbePoint(Code({0x48, 0x8b, 0x07, 0xff, 0x60, 0x08}), 0x1000, false).cheap);
  // call; push rbx
  EXPECT_FALSE(
      FindProbePoint(Code({0x48, 0x8b, 0x07, 0xe8, 0, 0, 0, 0, 0x53}), 0x1000, false).cheap);
}

TEST(ProbePointTest, StaysWhereALoopLeadsBack) {
  // mov rax,[rdi]; nop; dec rax; jne to the nop
  const auto code = Code({0x48, 0x8b, 0x07, 0x90, 0x48, 0xff, 0xc8, 0x75, 0xfa, 0xc3});
  const ProbePoint p = FindProbePoint(code, 0x1000, false);
  EXPECT_FALSE(p.cheap);
  EXPECT_THAT(p.why, testing::HasSubstr("jump"));
}

TEST(ProbePointTest, BytesThatAreNoCode) {
  EXPECT_FALSE(FindProbePoint(Code({}), 0x1000, false).cheap);
  EXPECT_FALSE(FindProbePoint(Code({0x0f}), 0x1000, false).cheap);
  EXPECT_FALSE(FindProbePoint(Code({0xff, 0xff, 0xff, 0xff}), UINT64_MAX - 2, true).cheap);
}

}  // namespace
}  // namespace mycroft
