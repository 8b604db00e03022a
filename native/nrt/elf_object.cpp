#include "elf_object.h"

#include <cstring>

namespace neuroncore {

void damaged(const std::string& reason) { throw LoadError{NRT_INVALID, "damaged object code: " + reason}; }
void unsupported(const std::string& reason) { throw LoadError{NRT_UNSUPPORTED_NEFF_VERSION, reason}; }

ElfObject::ElfObject(const uint8_t* bytes, size_t size, uint16_t machine) : bytes_(bytes), size_(size) {
  if (!holds(0, sizeof(Elf64_Ehdr))) damaged("it is shorter than its header");
  check_header(machine);
  const auto header = read<Elf64_Ehdr>(0);
  section_table_ = header.e_shoff;
  if (!holds(section_table_, uint64_t(header.e_shnum) * sizeof(Elf64_Shdr))) damaged("its section table leaves it");
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    sections_.push_back(read<Elf64_Shdr>(section_table_ + i * sizeof(Elf64_Shdr)));
  }
  for (size_t i = 0; i < sections_.size(); ++i) {
    check_section(i);
    if (sections_[i].sh_type != SHT_SYMTAB) continue;
    if (symbol_table_ != 0) damaged("it has two symbol tables");
    symbol_table_ = i;
  }
  if (symbol_table_ == 0) damaged("it has no symbol table");
  read_symbols(sections_[symbol_table_]);
  for (const Elf64_Shdr& section : sections_) check_relocations(section);
}

void ElfObject::check_header(uint16_t machine) const {
  const auto header = read<Elf64_Ehdr>(0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) damaged("it is not an ELF file");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    unsupported("object code of another kind of machine: need 64 bits, little-endian");
  }
  if (header.e_machine != machine) {
    unsupported("object code of machine " + std::to_string(header.e_machine) + ", need " + std::to_string(machine));
  }
  if (header.e_ident[EI_VERSION] != EV_CURRENT || header.e_version != EV_CURRENT) damaged("its version is unknown");
  if (header.e_type != ET_REL) unsupported("an ELF file of type " + std::to_string(header.e_type) + ", need an object");
  if (header.e_shentsize != sizeof(Elf64_Shdr)) damaged("its section headers are of an unknown size");
}

void ElfObject::check_section(size_t number) const {
  const Elf64_Shdr& section = sections_[number];
  const bool in_file = section.sh_type != SHT_NULL && section.sh_type != SHT_NOBITS;
  if (in_file && !holds(section.sh_offset, section.sh_size)) {
    damaged("section " + std::to_string(number) + " leaves it");
  }
}

void ElfObject::read_symbols(const Elf64_Shdr& table) {
  if (table.sh_entsize != sizeof(Elf64_Sym) || table.sh_size % sizeof(Elf64_Sym) != 0) {
    damaged("its symbols are of an unknown size");
  }
  if (table.sh_link >= sections_.size() || sections_[table.sh_link].sh_type != SHT_STRTAB) {
    damaged("its symbols have no names");
  }
  const Elf64_Shdr& strings = sections_[table.sh_link];
  if (strings.sh_size == 0 || contents(strings)[strings.sh_size - 1] != 0) damaged("its names have no end");
  names_ = reinterpret_cast<const char*>(contents(strings));
  for (uint64_t at = 0; at < table.sh_size; at += sizeof(Elf64_Sym)) {
    const auto symbol = read<Elf64_Sym>(table.sh_offset + at);
    if (symbol.st_name >= strings.sh_size) damaged("a symbol's name leaves the names");
    if (symbol.st_shndx < SHN_LORESERVE && symbol.st_shndx >= sections_.size()) damaged("a symbol is in no section");
    symbols_.push_back(symbol);
  }
}

void ElfObject::check_relocations(const Elf64_Shdr& section) const {
  if (section.sh_type != SHT_RELA && section.sh_type != SHT_REL) return;
  if (section.sh_info >= sections_.size()) damaged("relocations of no section");
  if (!is_loaded(sections_[section.sh_info])) return;
  if (section.sh_type == SHT_REL) unsupported("relocations without addends");
  if (section.sh_link != symbol_table_) damaged("relocations by an unknown symbol table");
  if (section.sh_entsize != sizeof(Elf64_Rela) || section.sh_size % sizeof(Elf64_Rela) != 0) {
    damaged("its relocations are of an unknown size");
  }
  for (uint64_t at = 0; at < section.sh_size; at += sizeof(Elf64_Rela)) {
    const auto relocation = read<Elf64_Rela>(section.sh_offset + at);
    if (ELF64_R_SYM(relocation.r_info) >= symbols_.size()) damaged("a relocation by an unknown symbol");
  }
}

}  // namespace neuroncore
