// SPDX-License-Identifier: Apache-2.0
#include "userspace/source/probes/probe_point.h"

#include <Zydis/Zydis.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace mycroft {

namespace {

// How far from the entry a place may be, and how much code is searched for jumps to it.
constexpr uint64_t kMaxMove = 48;
constexpr size_t kMaxCode = 16384;

struct Decoded {
  ZydisDecodedInstruction instruction;
  ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
};

bool Decode(const ZydisDecoder& decoder, std::span<const uint8_t> code, size_t at, Decoded* d) {
  return at < code.size() &&
         ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder, code.data() + at, code.size() - at,
                                             &d->instruction, d->operands));
}

bool HasPrefix(const ZydisDecodedInstruction& i) {
  // The kernel looks at the bare opcode; of the prefixes it knows REX with push only.
  return i.raw.prefix_count > ((i.attributes & ZYDIS_ATTRIB_HAS_REX) != 0 ? 1 : 0);
}

// branch_setup_xol_ops() and push_setup_xol_ops() of the kernel. call is emulated too, but
// changes the stack: a place to probe is never behind one.
bool Emulated(const ZydisDecodedInstruction& i) {
  if (i.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT) {
    if (i.opcode >= 0x50 && i.opcode <= 0x57) return !HasPrefix(i);
    if ((i.attributes & ZYDIS_ATTRIB_HAS_REX) != 0 || i.raw.prefix_count != 0) return false;
    return i.opcode == 0x90 || i.opcode == 0xeb || i.opcode == 0xe9 ||
           (i.opcode >= 0x70 && i.opcode <= 0x7f);
  }
  return i.opcode_map == ZYDIS_OPCODE_MAP_0F && i.opcode >= 0x80 && i.opcode <= 0x8f &&
         i.raw.prefix_count == 0;
}

// Integer arguments in their order (System V ABI, 3.2.3).
bool IsArgument(ZydisRegister r, int arguments) {
  constexpr ZydisRegister kOrder[] = {ZYDIS_REGISTER_RDI, ZYDIS_REGISTER_RSI, ZYDIS_REGISTER_RDX,
                                      ZYDIS_REGISTER_RCX, ZYDIS_REGISTER_R8,  ZYDIS_REGISTER_R9};
  const ZydisRegister whole = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, r);
  const auto* end = std::begin(kOrder) + std::clamp(arguments, 0, 6);
  return std::find(std::begin(kOrder), end, whole) != end;
}

// True when what follows it sees other arguments (or, on_return, another stack).
bool Spoils(const Decoded& d, bool on_return, int arguments) {
  for (int i = 0; i < d.instruction.operand_count; ++i) {
    const ZydisDecodedOperand& o = d.operands[i];
    if (o.type != ZYDIS_OPERAND_TYPE_REGISTER ||
        (o.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) == 0) {
      continue;
    }
    if (!on_return && IsArgument(o.reg.value, arguments)) return true;
    if (on_return && ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, o.reg.value) ==
                         ZYDIS_REGISTER_RSP) {
      return true;
    }
  }
  return false;
}

bool Branches(const ZydisDecodedInstruction& i) {
  switch (i.meta.category) {
    case ZYDIS_CATEGORY_CALL:
    case ZYDIS_CATEGORY_COND_BR:
    case ZYDIS_CATEGORY_UNCOND_BR:
    case ZYDIS_CATEGORY_RET:
    case ZYDIS_CATEGORY_SYSCALL:
    case ZYDIS_CATEGORY_SYSTEM:
    case ZYDIS_CATEGORY_INTERRUPT:
      return true;
    default:
      return false;
  }
}

}  // namespace

ProbePoint FindProbePoint(std::span<const uint8_t> code, uint64_t address, bool on_return,
                          int arguments) {
  if (code.size() > kMaxCode) code = code.first(kMaxCode);
  ZydisDecoder decoder;
  ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
  ProbePoint point{.address = address};
  Decoded d;
  if (!Decode(decoder, code, 0, &d)) {
    point.why = "its first instruction cannot be decoded";
    return point;
  }
  const std::string first = ZydisMnemonicGetString(d.instruction.mnemonic);
  point.instruction = first;
  if (Emulated(d.instruction)) {
    point.cheap = true;
    return point;
  }
  size_t at = 0;
  std::string stop = "no push, nop or jump near its beginning";
  bool found = false;
  while (true) {
    if (Branches(d.instruction)) {
      stop = absl::StrCat(ZydisMnemonicGetString(d.instruction.mnemonic),
                          " comes before a push, nop or jump");
      break;
    }
    if (Spoils(d, on_return, arguments)) {
      stop = on_return ? "the stack pointer moves before a push, nop or jump"
                       : "an argument is overwritten before a push, nop or jump";
      break;
    }
    at += d.instruction.length;
    if (at > kMaxMove || !Decode(decoder, code, at, &d)) break;
    if (Emulated(d.instruction)) {
      found = true;
      break;
    }
  }
  if (!found) {
    point.why = absl::StrCat("begins with ", first, "; ", stop);
    return point;
  }
  // Nothing may jump back between the entry and the place. Jumps through registers (a table
  // of a switch) lead to code after them, and those of a tail call to other functions.
  Decoded other;
  for (size_t i = 0; i < code.size();) {
    if (!Decode(decoder, code, i, &other)) break;
    ZyanU64 target = 0;
    if (Branches(other.instruction) && other.instruction.operand_count > 0 &&
        other.operands[0].type == ZYDIS_OPERAND_TYPE_IMMEDIATE &&
        ZYAN_SUCCESS(ZydisCalcAbsoluteAddress(&other.instruction, &other.operands[0], address + i,
                                              &target)) &&
        target > address && target <= address + at) {
      point.why = absl::StrCat("begins with ", first, "; a jump leads back to its beginning");
      return point;
    }
    i += other.instruction.length;
  }
  point.address = address + at;
  point.cheap = true;
  point.instruction = ZydisMnemonicGetString(d.instruction.mnemonic);
  return point;
}

ProbePoint FindProbePoint(const ElfImage& image, uint64_t address, bool on_return, int arguments) {
  std::span<const uint8_t> code = image.Code(address, kMaxCode);
  if (const std::optional<uint64_t> next = image.NextFunction(address);
      next && *next - address < code.size()) {
    code = code.first(*next - address);
  }
  if (code.empty()) return {.address = address, .why = "there is no code"};
  return FindProbePoint(code, address, on_return, arguments);
}

}  // namespace mycroft
