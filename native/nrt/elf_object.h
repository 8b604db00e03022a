// ELF object: a relocatable object file in memory, checked.
#ifndef ADAPTIVE_EAGER_NRT_ELF_OBJECT_H
#define ADAPTIVE_EAGER_NRT_ELF_OBJECT_H

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nrt.h"

namespace neuroncore {

// Why object code cannot be loaded. Thrown by everything that reads or loads it.
struct LoadError {
  NRT_STATUS status;
  std::string reason;
};
// The bytes contradict themselves.
[[noreturn]] void damaged(const std::string& reason);
// The bytes may be sound, but this process cannot run them.
[[noreturn]] void unsupported(const std::string& reason);

// Borrows the bytes, which need no alignment. Whatever it gives out lies inside them, and its indices are in range:
// only the meaning of the numbers is left to whoever uses them.
class ElfObject {
 public:
  // Throws LoadError unless this is a relocatable ELF64 object of `machine` (EM_X86_64, ...), little-endian.
  ElfObject(const uint8_t* bytes, size_t size, uint16_t machine);

  const uint8_t* bytes() const { return bytes_; }
  size_t size() const { return size_; }
  uint64_t section_table() const { return section_table_; }
  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  // The first byte of a section that takes room in the file.
  const uint8_t* contents(const Elf64_Shdr& section) const { return bytes_ + section.sh_offset; }
  const std::vector<Elf64_Sym>& symbols() const { return symbols_; }
  const char* name(const Elf64_Sym& symbol) const { return names_ + symbol.st_name; }

  // Calls visit(relocation, number of the section it changes) for all relocations of sections that are loaded.
  template <class Visit>
  void each_relocation(Visit&& visit) const {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_RELA || !is_loaded(sections_[section.sh_info])) continue;
      for (uint64_t at = 0; at < section.sh_size; at += sizeof(Elf64_Rela)) {
        visit(read<Elf64_Rela>(section.sh_offset + at), size_t(section.sh_info));
      }
    }
  }

  static bool is_loaded(const Elf64_Shdr& section) { return (section.sh_flags & SHF_ALLOC) != 0; }

 private:
  template <class T>
  T read(uint64_t offset) const {
    T value;
    __builtin_memcpy(&value, bytes_ + offset, sizeof value);
    return value;
  }
  bool holds(uint64_t offset, uint64_t size) const { return offset <= size_ && size <= size_ - offset; }
  void check_header(uint16_t machine) const;
  void check_section(size_t number) const;
  void check_relocations(const Elf64_Shdr& section) const;
  void read_symbols(const Elf64_Shdr& table);

  const uint8_t* const bytes_;
  const size_t size_;
  uint64_t section_table_ = 0;
  size_t symbol_table_ = 0;  // its section's number; 0: none
  std::vector<Elf64_Shdr> sections_;
  std::vector<Elf64_Sym> symbols_;
  const char* names_ = nullptr;
};

}  // namespace neuroncore
#endif
