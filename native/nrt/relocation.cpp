#include "relocation.h"

#include <elf.h>

#include <cstring>
#include <limits>

namespace neuroncore {
namespace {

template <class T>
void store(uint8_t* place, T value) {
  std::memcpy(place, &value, sizeof value);
}

template <class T>
bool store_if_fits(uint8_t* place, int64_t value) {
  if (value < int64_t(std::numeric_limits<T>::min()) || value > int64_t(std::numeric_limits<T>::max())) return false;
  store(place, T(value));
  return true;
}

RelocationKind x86_64_kind(uint32_t type) {
  switch (type) {
    case R_X86_64_NONE:
      return {Refers::kNothing, 0, 0};
    case R_X86_64_64:
    case R_X86_64_PC64:
      return {Refers::kToSymbol, 8, 0};
    case R_X86_64_PC32:
    case R_X86_64_32:
    case R_X86_64_32S:
      return {Refers::kToSymbol, 4, 0};
    case R_X86_64_PLT32:
      return {Refers::kToCallee, 4, -4};
    case R_X86_64_GOTPCREL:
    case R_X86_64_GOTPCRELX:
    case R_X86_64_REX_GOTPCRELX:
      return {Refers::kToSlot, 4, -4};
    default:
      return {};
  }
}

bool x86_64_relocate(uint32_t type, uint8_t* place, uint64_t address, uint64_t value) {
  switch (type) {
    case R_X86_64_64:
      store(place, value);
      return true;
    case R_X86_64_PC64:
      store(place, value - address);
      return true;
    case R_X86_64_32:
      return store_if_fits<uint32_t>(place, int64_t(value));
    case R_X86_64_32S:
      return store_if_fits<int32_t>(place, int64_t(value));
    default:
      return store_if_fits<int32_t>(place, int64_t(value - address));
  }
}

RelocationKind aarch64_kind(uint32_t type) {
  switch (type) {
    case R_AARCH64_NONE:
      return {Refers::kNothing, 0, 0};
    case R_AARCH64_ABS64:
    case R_AARCH64_PREL64:
      return {Refers::kToSymbol, 8, 0};
    case R_AARCH64_ABS32:
    case R_AARCH64_PREL32:
    case R_AARCH64_ADR_PREL_LO21:
    case R_AARCH64_ADR_PREL_PG_HI21:
    case R_AARCH64_ADD_ABS_LO12_NC:
    case R_AARCH64_LDST8_ABS_LO12_NC:
    case R_AARCH64_LDST16_ABS_LO12_NC:
    case R_AARCH64_LDST32_ABS_LO12_NC:
    case R_AARCH64_LDST64_ABS_LO12_NC:
    case R_AARCH64_LDST128_ABS_LO12_NC:
      return {Refers::kToSymbol, 4, 0};
    case R_AARCH64_CALL26:
    case R_AARCH64_JUMP26:
      return {Refers::kToCallee, 4, 0};
    case R_AARCH64_ADR_GOT_PAGE:
    case R_AARCH64_LD64_GOT_LO12_NC:
      return {Refers::kToSlot, 4, 0};
    default:
      return {};
  }
}

// Puts the `bits` low bits of `value` into an instruction at bit `at`.
void put_field(uint8_t* place, int at, int bits, uint64_t value) {
  uint32_t instruction;
  std::memcpy(&instruction, place, sizeof instruction);
  const uint32_t mask = ((uint32_t(1) << bits) - 1) << at;
  store(place, (instruction & ~mask) | (uint32_t(value << at) & mask));
}

bool fits_signed(int64_t value, int bits) { return value >> (bits - 1) == 0 || value >> (bits - 1) == -1; }

// ADR and ADRP keep their distance in two fields.
bool put_distance(uint8_t* place, int64_t distance) {
  if (!fits_signed(distance, 21)) return false;
  put_field(place, 29, 2, uint64_t(distance));
  put_field(place, 5, 19, uint64_t(distance) >> 2);
  return true;
}

// Loads and stores count their offset in units of what they move.
bool put_offset(uint8_t* place, uint64_t value, int log2_unit) {
  if ((value & ((uint64_t(1) << log2_unit) - 1)) != 0) return false;
  put_field(place, 10, 12, (value & 0xfff) >> log2_unit);
  return true;
}

bool aarch64_relocate(uint32_t type, uint8_t* place, uint64_t address, uint64_t value) {
  const auto distance = int64_t(value - address);
  switch (type) {
    case R_AARCH64_ABS64:
      store(place, value);
      return true;
    case R_AARCH64_PREL64:
      store(place, distance);
      return true;
    case R_AARCH64_ABS32:  // may be meant with or without a sign
      return store_if_fits<uint32_t>(place, int64_t(value)) || store_if_fits<int32_t>(place, int64_t(value));
    case R_AARCH64_PREL32:
      return store_if_fits<int32_t>(place, distance);
    case R_AARCH64_ADR_PREL_LO21:
      return put_distance(place, distance);
    case R_AARCH64_ADR_PREL_PG_HI21:
    case R_AARCH64_ADR_GOT_PAGE:
      return put_distance(place, int64_t((value & ~uint64_t(0xfff)) - (address & ~uint64_t(0xfff))) >> 12);
    case R_AARCH64_ADD_ABS_LO12_NC:
    case R_AARCH64_LDST8_ABS_LO12_NC:
      return put_offset(place, value, 0);
    case R_AARCH64_LDST16_ABS_LO12_NC:
      return put_offset(place, value, 1);
    case R_AARCH64_LDST32_ABS_LO12_NC:
      return put_offset(place, value, 2);
    case R_AARCH64_LDST64_ABS_LO12_NC:
    case R_AARCH64_LD64_GOT_LO12_NC:
      return put_offset(place, value, 3);
    case R_AARCH64_LDST128_ABS_LO12_NC:
      return put_offset(place, value, 4);
    default:  // CALL26, JUMP26
      if ((distance & 3) != 0 || !fits_signed(distance, 28)) return false;
      put_field(place, 0, 26, uint64_t(distance) >> 2);
      return true;
  }
}

}  // namespace

RelocationKind relocation_kind(uint16_t machine, uint32_t type) {
  if (machine == EM_X86_64) return x86_64_kind(type);
  if (machine == EM_AARCH64) return aarch64_kind(type);
  return {};
}

bool relocate(uint16_t machine, uint32_t type, uint8_t* place, uint64_t address, uint64_t target, int64_t addend) {
  const uint64_t value = target + uint64_t(addend);
  return machine == EM_X86_64 ? x86_64_relocate(type, place, address, value)
                              : aarch64_relocate(type, place, address, value);
}

void write_linkage(uint16_t machine, uint8_t* place, uint64_t target) {
  if (machine == EM_X86_64) {
    static constexpr uint8_t kJump[8] = {0xff, 0x25, 2, 0, 0, 0, 0x66, 0x90};  // jmp *[rip + 2]; nop
    std::memcpy(place, kJump, sizeof kJump);
  } else {
    store(place, uint32_t(0x58000050));      // ldr x16, . + 8
    store(place + 4, uint32_t(0xd61f0200));  // br x16
  }
  store(place + kLinkageSlot, target);
}

}  // namespace neuroncore
