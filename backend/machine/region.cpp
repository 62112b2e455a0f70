#include "backend/machine/region.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace backend {

Region::Region() {
  const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
  const std::size_t size = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* begin = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return;  // then there is never room
  begin_ = static_cast<char*>(begin);
  size_ = size;
}

Region::~Region() {
  if (begin_ != nullptr) munmap(begin_, size_);
}

void* Region::take(std::size_t bytes) {
  if (size_ - top_ < bytes) return nullptr;
  void* block = begin_ + top_;
  top_ += bytes;
  touched_ = std::max(touched_, top_);
  ++in_use_;
  return block;
}

void Region::give_back() {
  if (touched_ > 0) madvise(begin_, touched_, MADV_DONTNEED);
  touched_ = 0;
}

}  // namespace backend
