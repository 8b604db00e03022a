// Relocation: what a place in object code becomes once the addresses are known, by machine.
#ifndef ADAPTIVE_EAGER_NRT_RELOCATION_H
#define ADAPTIVE_EAGER_NRT_RELOCATION_H

#include <cstddef>
#include <cstdint>

namespace neuroncore {

// What a relocation type refers to.
enum class Refers {
  kUnknown,   // the type is not supported
  kNothing,   // no change
  kToSymbol,  // the symbol itself, which must be in reach
  kToCallee,  // the symbol, or where that is out of reach the jump of its linkage
  kToSlot,    // the address in its linkage
};

struct RelocationKind {
  Refers refers = Refers::kUnknown;
  uint8_t width = 0;         // bytes of the place
  int64_t plain_addend = 0;  // kToCallee, and AArch64's kToSlot: of a reference to the symbol's very beginning
};

// `machine` is EM_X86_64 or EM_AARCH64, `type` what its psABI numbers. Both machines are known everywhere: a relocation
// is arithmetic on bytes.
RelocationKind relocation_kind(uint16_t machine, uint32_t type);

// Changes the `width` bytes at `place`, whose address will be `address`, to refer to `target` + `addend`. False, and
// nothing is changed, if that is out of reach or not aligned as the instruction needs it.
bool relocate(uint16_t machine, uint32_t type, uint8_t* place, uint64_t address, uint64_t target, int64_t addend);

// Linkage of a symbol: a jump to it, through its address in the second half.
constexpr size_t kLinkageBytes = 16;
constexpr size_t kLinkageSlot = 8;
void write_linkage(uint16_t machine, uint8_t* place, uint64_t target);

}  // namespace neuroncore
#endif
