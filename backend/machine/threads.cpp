#include "backend/machine/threads.hpp"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include "backend/machine/scheduling.hpp"

namespace backend {
namespace {

/// OpenMP 5.0's omp_pause_resource_all(omp_pause_soft) of the library that LibTorch uses, whatever it is; with GNU's,
/// it ends the calling thread's own threads.
void end_threads_of_ops() {
  constexpr int kSoft = 1;
  if (void* const pause = dlsym(RTLD_DEFAULT, "omp_pause_resource_all"); pause != nullptr)
    reinterpret_cast<int (*)(int)>(pause)(kSoft);
}

}  // namespace

RankThreads::RankThreads(std::uint32_t rank, std::uint32_t threads, bool has_process)
    : rank_(rank), threads_(threads), has_process_(has_process) {
  pin(cores_of_rank(rank_, threads_));  // another rank that has the process may have moved this thread
  if (threads_ == 1) return;            // nothing else is touched: setting LibTorch's number clears its caches
  if (has_process_) pin_process(cores_of_rank(rank_, threads_));
  at::set_num_threads(static_cast<int>(threads_));
}

RankThreads::~RankThreads() {
  if (threads_ == 1) return;
  end_threads_of_ops();
  at::set_num_threads(1);
  const std::vector<std::uint32_t> own = {core_of_rank(rank_)};
  if (has_process_)
    pin_process(own);
  else
    pin(own);
}

}  // namespace backend
