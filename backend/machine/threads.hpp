// The threads of a rank: the issuing one, and those that LibTorch's ops are cut for.
//
//   const RankThreads threads(rank, 2, /*has_process=*/false);   // until the end of the scope: two threads, two cores
//   weight.add(bias);                                            // half of it on each
//
// OpenMP's threads belong to the thread that began them; they inherit its cores and policy, and stay for the next op.
// Those of a scope end with it: afterwards they would wait for work, spinning, on cores that other ranks get, and count
// among the threads for which there must be cores (else they'd stop to spin, and every op would have to wake them).
#pragma once

#include <cstdint>

namespace backend {

class RankThreads {
 public:
  /// `has_process`: the rank's transport has threads in this process, which get the cores, too, as all threads here do.
  RankThreads(std::uint32_t rank, std::uint32_t threads, bool has_process);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

 private:
  std::uint32_t rank_, threads_;
  bool has_process_;
};

}  // namespace backend
