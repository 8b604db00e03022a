#include "artifact.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "nrtx.h"
#include "sha256.h"

namespace neuroncore {
namespace {

static_assert(std::endian::native == std::endian::little, "artefacts are little-endian");

constexpr char kMagic[8] = {'A', 'E', 'N', 'C', '\r', '\n', '\x1a', '\n'};
constexpr uint32_t kFormatVersion = 1;

// A cursor that stops for good at the first read beyond the end.
class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : next_(data), left_(size) {}

  bool ok() const { return ok_; }
  size_t left() const { return left_; }
  const uint8_t* position() const { return next_; }

  const uint8_t* bytes(uint64_t count) {
    if (!ok_ || count > left_) {
      ok_ = false;
      return nullptr;
    }
    const uint8_t* const start = next_;
    next_ += count;
    left_ -= count;
    return start;
  }

  template <class Integer>
  Integer integer() {
    Integer value = 0;
    if (const uint8_t* const start = bytes(sizeof value)) std::memcpy(&value, start, sizeof value);
    return value;
  }

  std::string text() {
    const uint32_t length = integer<uint32_t>();
    const uint8_t* const start = bytes(length);
    return start == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(start), length);
  }

  // A name that fits the interface's fields: not empty, no zero byte, at most 255 bytes, not seen before.
  std::string name(std::set<std::string>* seen) {
    std::string name = text();
    if (name.empty() || name.size() > 255 || name.find('\0') != std::string::npos || !seen->insert(name).second) {
      ok_ = false;
    }
    return name;
  }

 private:
  const uint8_t* next_;
  size_t left_;
  bool ok_ = true;
};

}  // namespace

NRT_STATUS parse_artifact(const void* bytes, size_t size, Artifact* artifact) {
  Reader reader(static_cast<const uint8_t*>(bytes), size);
  const uint8_t* const magic = reader.bytes(sizeof kMagic);
  const auto version = reader.integer<uint32_t>();
  if (!reader.ok() || std::memcmp(magic, kMagic, sizeof kMagic) != 0) return NRT_INVALID;
  if (version != kFormatVersion) return NRT_UNSUPPORTED_NEFF_VERSION;

  const uint8_t* const checksum = reader.bytes(sizeof(Digest));
  if (!reader.ok()) return NRT_INVALID;
  const Digest digest = sha256(reader.position(), reader.left());
  if (!std::equal(digest.begin(), digest.end(), checksum)) return NRT_INVALID;

  // The checksum holds off accidents, not someone who can compute one: every length is checked all the same, and
  // nothing is reserved on the word of a count.
  artifact->target = reader.text();
  std::set<std::string> seen;
  for (auto n = reader.integer<uint32_t>(); n > 0 && reader.ok(); --n) artifact->entries.push_back(reader.name(&seen));
  seen = {"launch"};  // nrt_execute's own input
  for (auto n = reader.integer<uint32_t>(); n > 0 && reader.ok(); --n) {
    TensorSpec spec;
    spec.name = reader.name(&seen);
    const auto usage = reader.integer<uint32_t>();
    const auto dtype = reader.integer<uint32_t>();
    spec.size = reader.integer<uint64_t>();
    if (usage > NRT_TENSOR_USAGE_OUTPUT || dtype > NRT_DTYPE_WIDEST_) return NRT_INVALID;
    spec.usage = static_cast<nrt_tensor_usage_t>(usage);
    spec.dtype = static_cast<nrt_dtype_t>(dtype);
    if (spec.dtype != NRT_DTYPE_UNKNOWN && element_size(spec.dtype) == 0) return NRT_INVALID;
    artifact->tensors.push_back(std::move(spec));
  }
  for (auto n = reader.integer<uint32_t>(); n > 0 && reader.ok(); --n) {  // metadata: the compiler's, not ours
    reader.text();
    reader.text();
  }
  const auto code_size = reader.integer<uint64_t>();
  artifact->code = reader.bytes(code_size);
  artifact->code_size = code_size;
  const bool whole = reader.ok() && reader.left() == 0;
  return whole && !artifact->entries.empty() && code_size > 0 ? NRT_SUCCESS : NRT_INVALID;
}

size_t element_size(nrt_dtype_t dtype) {
  switch (static_cast<int>(dtype)) {
    case NRT_DTYPE_INT8:
    case NRT_DTYPE_UINT8:
    case NRT_DTYPE_FP8_E3:
    case NRT_DTYPE_FP8_E4:
    case NRT_DTYPE_FP8_E5:
    case NRTX_DTYPE_BOOL:
      return 1;
    case NRT_DTYPE_INT16:
    case NRT_DTYPE_UINT16:
    case NRT_DTYPE_BFLOAT16:
    case NRT_DTYPE_FLOAT16:
      return 2;
    case NRT_DTYPE_INT32:
    case NRT_DTYPE_UINT32:
    case NRT_DTYPE_FLOAT32:
    case NRT_DTYPE_FP32R:
      return 4;
    case NRT_DTYPE_INT64:
    case NRT_DTYPE_UINT64:
    case NRTX_DTYPE_FLOAT64:
      return 8;
    default:
      return 0;
  }
}

}  // namespace neuroncore
