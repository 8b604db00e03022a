#include "object_code.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "elf_object.h"
#include "relocation.h"

namespace neuroncore {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
constexpr uint16_t kMachine = EM_NONE;  // every object is for another machine
#endif

// All of an object is in reach of a near call inside it: 128 MiB on AArch64, more on x86-64.
constexpr uint64_t kMostBytes = 64 << 20;

constexpr uint64_t kNone = ~uint64_t(0);

uint64_t page_bytes() {
  static const auto bytes = uint64_t(sysconf(_SC_PAGESIZE));
  return bytes;
}

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) & ~(unit - 1); }  // unit: a power of two

// Parts of the mapping, by what may be done with them.
enum Part { kCode, kConstants, kVariables, kParts };

Part part_of(const Elf64_Shdr& section) {
  const bool code = (section.sh_flags & SHF_EXECINSTR) != 0, variable = (section.sh_flags & SHF_WRITE) != 0;
  if (code && variable) unsupported("a section that is both writable and executable");
  return code ? kCode : variable ? kVariables : kConstants;
}

void check_can_be_loaded(const Elf64_Shdr& section) {
  switch (section.sh_type) {
    case SHT_PROGBITS:
    case SHT_NOBITS:
    case SHT_NOTE:
      break;
    default:
      if (section.sh_type == SHT_X86_64_UNWIND && kMachine == EM_X86_64) break;
      unsupported("a section of type " + std::to_string(section.sh_type));  // constructors, for one
  }
  if ((section.sh_flags & SHF_TLS) != 0) unsupported("thread-local variables");
  if ((section.sh_flags & SHF_COMPRESSED) != 0) unsupported("a compressed section");
  if ((section.sh_addralign & (section.sh_addralign - 1)) != 0 && section.sh_addralign != 0) {
    damaged("an alignment that is no power of two");
  }
  if (section.sh_addralign > page_bytes()) unsupported("a section aligned to more than a page");
}

bool is_in_a_section(const Elf64_Sym& symbol) {
  return symbol.st_shndx != SHN_UNDEF && symbol.st_shndx < SHN_LORESERVE;
}

// Where everything goes, counted from the beginning of the mapping.
struct Layout {
  explicit Layout(const ElfObject& object) : sections(object.sections().size(), kNone) {
    for (const Part part : {kCode, kConstants, kVariables}) {
      begin[part] = total;
      for (size_t i = 0; i < sections.size(); ++i) place(object.sections()[i], part, &sections[i]);
      if (part == kCode) place_linkages(object);
      end[part] = total;
      total = round_up(total, page_bytes());
    }
    if (total == 0) damaged("there is nothing in it");
  }

  uint64_t begin[kParts], end[kParts];
  uint64_t total = 0;
  std::vector<uint64_t> sections;  // kNone: not loaded
  std::vector<uint64_t> linkages;  // by symbol; kNone: it needs none

 private:
  void place(const Elf64_Shdr& section, Part part, uint64_t* offset) {
    if (!ElfObject::is_loaded(section)) return;
    check_can_be_loaded(section);
    if (part_of(section) != part) return;
    *offset = round_up(total, std::max<uint64_t>(section.sh_addralign, 1));
    grow_to(*offset, section.sh_size);
  }

  void place_linkages(const ElfObject& object) {
    linkages.assign(object.symbols().size(), kNone);
    object.each_relocation([&](const Elf64_Rela& relocation, size_t) {
      const size_t number = ELF64_R_SYM(relocation.r_info);
      const Refers refers = relocation_kind(kMachine, ELF64_R_TYPE(relocation.r_info)).refers;
      const bool is_far = refers == Refers::kToCallee && !is_in_a_section(object.symbols()[number]);
      if (linkages[number] != kNone || (!is_far && refers != Refers::kToSlot)) return;
      linkages[number] = round_up(total, kLinkageBytes);
      grow_to(linkages[number], kLinkageBytes);
    });
  }

  void grow_to(uint64_t offset, uint64_t size) {
    if (size > kMostBytes || offset + size > kMostBytes) unsupported("object code of more than 64 MiB");
    total = offset + size;
  }
};

// One object on its way into memory.
class Relocator {
 public:
  Relocator(const ElfObject& object, const Layout& layout, uint8_t* memory, const ObjectCode::Resolve& resolve)
      : object_(object),
        layout_(layout),
        memory_(memory),
        resolve_(resolve),
        addresses_(object.symbols().size()),
        is_known_(object.symbols().size()) {}

  void run() {
    for (size_t i = 0; i < layout_.sections.size(); ++i) {
      const Elf64_Shdr& section = object_.sections()[i];
      if (layout_.sections[i] == kNone || section.sh_type == SHT_NOBITS || section.sh_size == 0) continue;
      std::memcpy(memory_ + layout_.sections[i], object_.contents(section), section.sh_size);
    }
    object_.each_relocation([&](const Elf64_Rela& relocation, size_t section) { apply(relocation, section); });
  }

 private:
  void apply(const Elf64_Rela& relocation, size_t section) {
    const uint32_t type = ELF64_R_TYPE(relocation.r_info);
    const RelocationKind kind = relocation_kind(kMachine, type);
    if (kind.refers == Refers::kUnknown) unsupported("relocations of type " + std::to_string(type));
    if (kind.refers == Refers::kNothing) return;
    const uint64_t room = object_.sections()[section].sh_size;
    if (relocation.r_offset > room || kind.width > room - relocation.r_offset)
      damaged("a relocation leaves its section");

    const size_t number = ELF64_R_SYM(relocation.r_info);
    const uint64_t target = address_of(number), linkage = layout_.linkages[number];
    uint8_t* const place = memory_ + layout_.sections[section] + relocation.r_offset;
    const auto link_to = [&](uint64_t to) {
      return relocate(kMachine, type, place, address(place), to, relocation.r_addend);
    };
    if (kind.refers != Refers::kToSlot && link_to(target)) return;
    // A linkage leads to the symbol itself, not to a place behind it.
    if (kind.refers == Refers::kToSymbol || linkage == kNone || relocation.r_addend != kind.plain_addend) {
      unsupported("a relocation of type " + std::to_string(type) + " that cannot reach " + name(number));
    }
    write_linkage(kMachine, memory_ + linkage, target);
    if (!link_to(address(memory_ + linkage) + (kind.refers == Refers::kToSlot ? kLinkageSlot : 0))) {
      unsupported("a linkage that is out of reach");
    }
  }

  uint64_t address_of(size_t number) {
    if (!is_known_[number]) {
      addresses_[number] = find(number);
      is_known_[number] = true;
    }
    return addresses_[number];
  }

  uint64_t find(size_t number) const {
    const Elf64_Sym& symbol = object_.symbols()[number];
    const auto type = ELF64_ST_TYPE(symbol.st_info);
    if (type == STT_TLS || type == STT_GNU_IFUNC) unsupported("symbols of type " + std::to_string(type));
    if (symbol.st_shndx == SHN_ABS) return symbol.st_value;
    if (symbol.st_shndx == SHN_UNDEF) {
      if (*object_.name(symbol) == '\0') damaged("a relocation by a symbol without a name");
      const void* const found = resolve_(object_.name(symbol));
      if (found == nullptr) unsupported("it needs " + name(number) + ", which no library has");
      return address(found);
    }
    if (!is_in_a_section(symbol)) unsupported("symbols in section " + std::to_string(symbol.st_shndx));
    if (layout_.sections[symbol.st_shndx] == kNone) damaged("it refers to a section that is not loaded");
    if (symbol.st_value > object_.sections()[symbol.st_shndx].sh_size) damaged("a symbol leaves its section");
    return address(memory_ + layout_.sections[symbol.st_shndx]) + symbol.st_value;
  }

  std::string name(size_t number) const { return std::string(object_.name(object_.symbols()[number])).substr(0, 80); }
  static uint64_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

  const ElfObject& object_;
  const Layout& layout_;
  uint8_t* const memory_;
  const ObjectCode::Resolve& resolve_;
  std::vector<uint64_t> addresses_;  // by symbol
  std::vector<bool> is_known_;
};

// The object as a debugger wants it: its section headers say where they are in memory.
std::vector<uint8_t> placed(const ElfObject& object, const Layout& layout, const uint8_t* memory) {
  std::vector<uint8_t> copy(object.bytes(), object.bytes() + object.size());
  for (size_t i = 0; i < layout.sections.size(); ++i) {
    if (layout.sections[i] == kNone) continue;
    const uint64_t address = reinterpret_cast<uintptr_t>(memory) + layout.sections[i];
    const uint64_t field = object.section_table() + i * sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, sh_addr);
    std::memcpy(copy.data() + field, &address, sizeof address);
  }
  return copy;
}

}  // namespace

Mapping::Mapping(size_t size) : size_(size) {
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw LoadError{NRT_RESOURCE, std::string("no memory for code: ") + std::strerror(errno)};
  data_ = static_cast<uint8_t*>(memory);
}

Mapping::~Mapping() { munmap(data_, size_); }

void Mapping::protect(size_t offset, size_t size, int protection) {
  if (size != 0 && mprotect(data_ + offset, size, protection) != 0) {
    throw LoadError{NRT_RESOURCE, std::string("memory cannot be made executable: ") + std::strerror(errno)};
  }
}

ObjectCode::ObjectCode(const uint8_t* bytes, size_t size, const Resolve& resolve) {
  const ElfObject object(bytes, size, kMachine);
  const Layout layout(object);
  mapping_ = std::make_unique<Mapping>(layout.total);
  uint8_t* const memory = mapping_->data();
  Relocator(object, layout, memory, resolve).run();
  const auto size_of = [&](Part part) { return layout.end[part] - layout.begin[part]; };
  mapping_->protect(layout.begin[kCode], size_of(kCode), PROT_READ | PROT_EXEC);
  mapping_->protect(layout.begin[kConstants], size_of(kConstants), PROT_READ);
  auto* const code = reinterpret_cast<char*>(memory + layout.begin[kCode]);
  __builtin___clear_cache(code, code + size_of(kCode));

  for (const Elf64_Sym& symbol : object.symbols()) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL) continue;
    if (!is_in_a_section(symbol) || layout.sections[symbol.st_shndx] == kNone) continue;
    const Elf64_Shdr& section = object.sections()[symbol.st_shndx];
    if (part_of(section) != kCode || symbol.st_value >= section.sh_size) damaged("a function outside of the code");
    functions_.emplace_back(object.name(symbol), memory + layout.sections[symbol.st_shndx] + symbol.st_value);
  }
  note_ = std::make_unique<DebuggerNote>(placed(object, layout, memory));
}

void* ObjectCode::function(const std::string& name) const {
  const auto found = std::find_if(functions_.begin(), functions_.end(), [&](const auto& f) { return f.first == name; });
  return found == functions_.end() ? nullptr : found->second;
}

}  // namespace neuroncore
