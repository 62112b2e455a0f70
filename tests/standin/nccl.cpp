// The stand-in libnccl.so.2: NCCL's calls by bytes through shared memory between processes, enqueued on the stand-in's
// streams. A process takes it by LD_LIBRARY_PATH. It has every call that world `nccl` makes, and no other.
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/standin/stream_abi.h"

namespace {

constexpr std::size_t kChunk = std::size_t{1} << 16;
constexpr std::chrono::seconds kMeetingTime(60);

/// One direction between two ranks: a chunk waits in it until the receiver has taken it.
struct Mailbox {
  std::atomic<int> met;  // ends that have come to the first message
  std::atomic<std::uint64_t> written, read;
  std::size_t bytes;
  char data[kChunk];
};

/// Of all ranks of a communicator; zero when it is made.
struct Shared {
  std::atomic<int> joined, aborted;
  Mailbox boxes[];  // [source × ranks + destination]
};

std::size_t width_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

/// Rounds to even, as hardware does.
struct Bfloat16 {
  std::uint16_t half = 0;

  explicit Bfloat16(float value = 0) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    half = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
  explicit operator float() const {
    const std::uint32_t bits = std::uint32_t{half} << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
};

/// In the ranks' order, rounded to T (that computes as C) each time: the same bits on all.
template <class T, class C = T>
void reduce_as(void* to, const std::vector<char*>& parts, std::size_t count, ncclRedOp_t op) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto of = [&](std::size_t rank) { return static_cast<C>(reinterpret_cast<const T*>(parts[rank])[i]); };
    auto total = static_cast<T>(of(0));
    for (std::size_t rank = 1; rank < parts.size(); ++rank)
      total =
          static_cast<T>(op == ncclMax ? std::max(static_cast<C>(total), of(rank)) : static_cast<C>(total) + of(rank));
    static_cast<T*>(to)[i] =
        op == ncclAvg ? static_cast<T>(static_cast<C>(total) / static_cast<C>(parts.size())) : total;
  }
}

using Reduce = void (*)(void*, const std::vector<char*>&, std::size_t, ncclRedOp_t);
/// Null for what nobody reduces here.
Reduce reduce_of(ncclDataType_t type, ncclRedOp_t op) {
  if (op != ncclSum && op != ncclAvg && op != ncclMax) return nullptr;
  switch (type) {
    case ncclFloat32:
      return reduce_as<float>;
    case ncclFloat64:
      return reduce_as<double>;
    case ncclInt32:
      return reduce_as<std::int32_t>;
    case ncclInt64:
      return reduce_as<std::int64_t>;
    case ncclBfloat16:
      return reduce_as<Bfloat16, float>;
    default:
      return nullptr;
  }
}

thread_local const char* last_error = "";

}  // namespace

struct ncclComm {
  int rank = 0, ranks = 0;
  Shared* shared = nullptr;
  std::size_t bytes = 0;
  std::atomic<bool> aborted{false};
  std::atomic<std::uint64_t> issued{0}, done{0};  // calls: they run in the order of issue

  [[nodiscard]] bool is_dead() const { return aborted || shared->aborted != 0; }
  Mailbox& box(int source, int destination) { return shared->boxes[source * ranks + destination]; }
};

namespace {

/// A part of a call that one other rank is at the other end of.
struct Leg {
  bool sends = false;
  int peer = 0;
  char* data = nullptr;
  std::size_t bytes = 0, moved = 0;
  bool is_message = false;
};

/// A send, receive or collective; or all that a group has for one communicator and stream.
struct Call {
  const char* name = "";
  ncclComm* comm = nullptr;
  standin_stream* stream = nullptr;
  std::uint64_t number = 0;
  std::vector<Leg> legs;
  std::vector<std::unique_ptr<char[]>> scratch;
  std::vector<std::function<void()>> finish;  // when all legs have moved
  std::vector<standin_access> accesses;
};

/// Moves a chunk, if there is one and room for it. False: more than the receiver wants.
bool move_chunk(ncclComm& comm, Leg& leg) {
  Mailbox& box = leg.sends ? comm.box(comm.rank, leg.peer) : comm.box(leg.peer, comm.rank);
  const std::uint64_t written = box.written, read = box.read;
  if (leg.sends && written == read) {
    box.bytes = std::min(kChunk, leg.bytes - leg.moved);
    std::memcpy(box.data, leg.data + leg.moved, box.bytes);
    leg.moved += box.bytes;
    box.written = written + 1;
  } else if (!leg.sends && written != read) {
    if (box.bytes > leg.bytes - leg.moved) return false;
    std::memcpy(leg.data + leg.moved, box.data, box.bytes);
    leg.moved += box.bytes;
    box.read = read + 1;
  }
  return true;
}

/// standin_stream's begin.
void begin(void* argument) {
  Call& call = *static_cast<Call*>(argument);
  call.number = call.comm->issued++;
  for (Leg& leg : call.legs) leg.moved = 0;
}

/// standin_stream's poll.
int advance(void* argument) {
  Call& call = *static_cast<Call*>(argument);
  ncclComm& comm = *call.comm;
  if (comm.is_dead()) return 1;
  if (comm.done != call.number) return 0;
  bool is_done = true;
  std::vector<bool> is_busy(2 * static_cast<std::size_t>(comm.ranks));  // legs of one pair and direction go in order
  for (Leg& leg : call.legs) {
    if (leg.moved == leg.bytes) continue;
    auto busy = is_busy[2 * static_cast<std::size_t>(leg.peer) + (leg.sends ? 1 : 0)];
    if (!busy && !move_chunk(comm, leg)) return -1;
    if (leg.moved == leg.bytes) continue;
    busy = true;
    is_done = false;
  }
  if (!is_done) return 0;
  for (const auto& finish : call.finish) finish();
  comm.done = call.number + 1;
  return 1;
}

thread_local int group_depth = 0;
thread_local std::vector<std::unique_ptr<Call>> group;  // what the open group has

void launch(std::unique_ptr<Call> call) {
  standin_stream* stream = call->stream;
  const std::vector<standin_access> accesses = call->accesses;
  Call* argument = call.release();
  stream->enqueue(
      stream, argument->name, accesses.data(), accesses.size(), &begin, &advance,
      [](void* finished) { delete static_cast<Call*>(finished); }, argument);
}

/// The host waits at the first message between two ranks until both have come to it, as NCCL does to connect them. (What
/// collectives need it connects with the communicator.)
ncclResult_t connect(const std::vector<std::unique_ptr<Call>>& calls) {
  const auto each_message = [&](const auto& visit) {
    for (const auto& call : calls)
      for (const Leg& leg : call->legs)
        if (leg.is_message)
          visit(*call->comm, leg,
                leg.sends ? call->comm->box(call->comm->rank, leg.peer) : call->comm->box(leg.peer, call->comm->rank));
  };
  each_message([](ncclComm& /*comm*/, const Leg& leg, Mailbox& box) { box.met |= leg.sends ? 1 : 2; });
  const auto until = std::chrono::steady_clock::now() + kMeetingTime;
  ncclResult_t result = ncclSuccess;
  each_message([&](ncclComm& comm, const Leg& /*leg*/, Mailbox& box) {
    while (box.met != 3 && !comm.is_dead() && result == ncclSuccess) {
      if (std::chrono::steady_clock::now() > until) result = ncclSystemError;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  if (result != ncclSuccess) last_error = "nobody has come to the other end of the first message";
  return result;
}

/// What has been submitted.
ncclResult_t launch_group() {
  std::vector<std::unique_ptr<Call>> calls = std::exchange(group, {});
  const ncclResult_t result = connect(calls);
  if (result == ncclSuccess)
    for (auto& call : calls) launch(std::move(call));
  return result;
}

template <class T>
void append(std::vector<T>& to, std::vector<T>& from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

ncclResult_t submit(std::unique_ptr<Call> call) {
  for (const auto& other : group)
    if (other->comm == call->comm && other->stream == call->stream) {
      append(other->legs, call->legs);
      append(other->scratch, call->scratch);
      append(other->finish, call->finish);
      append(other->accesses, call->accesses);
      return ncclSuccess;
    }
  group.push_back(std::move(call));
  return group_depth == 0 ? launch_group() : ncclSuccess;
}

/// Null for a stream that isn't the stand-in's.
std::unique_ptr<Call> make_call(const char* name, ncclComm_t comm, cudaStream_t stream) {
  auto call = std::make_unique<Call>();
  call->name = name;
  call->comm = comm;
  call->stream = reinterpret_cast<standin_stream*>(stream);
  if (stream != nullptr && call->stream->magic == STANDIN_MAGIC) return call;
  last_error = "not a stream of the stand-in accelerator";
  return nullptr;
}

/// `to` may be one of the parts.
void reduce_at_end(Call& call, Reduce reduce, std::vector<char*> parts, void* to, std::size_t count, std::size_t bytes,
                   ncclRedOp_t op) {
  char* total = call.scratch.emplace_back(std::make_unique<char[]>(bytes)).get();
  call.finish.emplace_back([=, parts = std::move(parts)] {
    reduce(total, parts, count, op);
    std::memcpy(to, total, bytes);
  });
}

char* bytes_of(const void* data) { return static_cast<char*>(const_cast<void*>(data)); }

ncclResult_t message(const char* name, bool sends, const void* data, std::size_t bytes, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
  auto call = make_call(name, comm, stream);
  if (call == nullptr) return ncclInvalidArgument;
  call->legs.push_back({.sends = sends, .peer = peer, .data = bytes_of(data), .bytes = bytes, .is_message = true});
  call->accesses.push_back({data, bytes, sends ? 0 : 1});
  return submit(std::move(call));
}

}  // namespace

extern "C" {

/// Tells the library from the real one.
extern const std::uint64_t standin_stream_magic;
const std::uint64_t standin_stream_magic = STANDIN_MAGIC;

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess       ? "no error"
         : result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "stand-in error";
}
const char* ncclGetLastError(ncclComm_t /*comm*/) { return last_error; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> count{0};
  *id = {};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::snprintf(id->internal, sizeof id->internal, "/nccl-standin-%d-%d-%lld", getpid(), count++,
                static_cast<long long>(now));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  const std::size_t bytes =
      sizeof(Shared) + sizeof(Mailbox) * static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
  const int file = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return ncclSystemError;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return ncclSystemError;
  auto* shared = static_cast<Shared*>(memory);
  ++shared->joined;
  const auto until = std::chrono::steady_clock::now() + kMeetingTime;
  while (shared->joined < ranks) {
    if (std::chrono::steady_clock::now() > until) return ncclSystemError;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (rank == 0) shm_unlink(id.internal);
  *comm = new ncclComm{rank, ranks, shared, bytes};
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  while (!comm->is_dead() && comm->done != comm->issued) std::this_thread::yield();
  munmap(comm->shared, comm->bytes);
  delete comm;
  return ncclSuccess;
}
/// Leaked: what is enqueued may still look at it.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  comm->shared->aborted = 1;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = !comm->aborted && comm->shared->aborted != 0 ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  return launch_group();
}

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return message("ncclSend", /*sends=*/true, data, count * width_of(type), peer, comm, stream);
}

ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return message("ncclRecv", /*sends=*/false, data, count * width_of(type), peer, comm, stream);
}

/// Everyone gets everything and reduces it.
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  auto call = make_call("ncclAllReduce", comm, stream);
  const Reduce reduce = reduce_of(type, op);
  if (call == nullptr || reduce == nullptr) return ncclInvalidArgument;
  const std::size_t bytes = count * width_of(type);
  std::vector<char*> parts;
  for (int rank = 0; rank < comm->ranks; ++rank) {
    if (rank == comm->rank) {
      parts.push_back(bytes_of(from));
      continue;
    }
    parts.push_back(call->scratch.emplace_back(std::make_unique<char[]>(bytes)).get());
    call->legs.push_back({true, rank, bytes_of(from), bytes});
    call->legs.push_back({false, rank, parts.back(), bytes});
  }
  reduce_at_end(*call, reduce, std::move(parts), to, count, bytes, op);
  call->accesses.push_back({from, bytes, 0});
  call->accesses.push_back({to, bytes, 1});
  return submit(std::move(call));
}

/// The root gets everything and reduces it.
ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  auto call = make_call("ncclReduce", comm, stream);
  const Reduce reduce = reduce_of(type, op);
  if (call == nullptr || reduce == nullptr) return ncclInvalidArgument;
  const std::size_t bytes = count * width_of(type);
  call->accesses.push_back({from, bytes, 0});
  if (comm->rank != root) {
    call->legs.push_back({.sends = true, .peer = root, .data = bytes_of(from), .bytes = bytes});
    return submit(std::move(call));
  }
  std::vector<char*> parts;
  for (int rank = 0; rank < comm->ranks; ++rank) {
    parts.push_back(rank == root ? bytes_of(from) : call->scratch.emplace_back(std::make_unique<char[]>(bytes)).get());
    if (rank != root) call->legs.push_back({.sends = false, .peer = rank, .data = parts.back(), .bytes = bytes});
  }
  reduce_at_end(*call, reduce, std::move(parts), to, count, bytes, op);
  call->accesses.push_back({to, bytes, 1});
  return submit(std::move(call));
}

/// Everyone gets everything; its own may lie there already.
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  auto call = make_call("ncclAllGather", comm, stream);
  if (call == nullptr) return ncclInvalidArgument;
  const std::size_t bytes = count * width_of(type);
  for (int rank = 0; rank < comm->ranks; ++rank) {
    char* block = static_cast<char*>(to) + static_cast<std::size_t>(rank) * bytes;
    if (rank == comm->rank) {
      call->finish.emplace_back([=] { std::memmove(block, from, bytes); });
      continue;
    }
    call->legs.push_back({true, rank, bytes_of(from), bytes});
    call->legs.push_back({false, rank, block, bytes});
  }
  call->accesses.push_back({from, bytes, 0});
  call->accesses.push_back({to, bytes * static_cast<std::size_t>(comm->ranks), 1});
  return submit(std::move(call));
}

/// Everyone gets its block of all and reduces it.
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  auto call = make_call("ncclReduceScatter", comm, stream);
  const Reduce reduce = reduce_of(type, op);
  if (call == nullptr || reduce == nullptr) return ncclInvalidArgument;
  const std::size_t bytes = count * width_of(type);
  std::vector<char*> parts;
  for (int rank = 0; rank < comm->ranks; ++rank) {
    char* block = bytes_of(from) + static_cast<std::size_t>(rank) * bytes;
    parts.push_back(rank == comm->rank ? block : call->scratch.emplace_back(std::make_unique<char[]>(bytes)).get());
    if (rank == comm->rank) continue;
    call->legs.push_back({true, rank, block, bytes});
    call->legs.push_back({false, rank, parts.back(), bytes});
  }
  reduce_at_end(*call, reduce, std::move(parts), to, count, bytes, op);
  call->accesses.push_back({from, bytes * static_cast<std::size_t>(comm->ranks), 0});
  call->accesses.push_back({to, bytes, 1});
  return submit(std::move(call));
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  auto call = make_call("ncclBroadcast", comm, stream);
  if (call == nullptr) return ncclInvalidArgument;
  const std::size_t bytes = count * width_of(type);
  if (comm->rank == root) {
    for (int rank = 0; rank < comm->ranks; ++rank)
      if (rank != root) call->legs.push_back({true, rank, bytes_of(from), bytes});
    call->finish.emplace_back([=] { std::memmove(to, from, bytes); });
    call->accesses.push_back({from, bytes, 0});
  } else {
    call->legs.push_back({false, root, static_cast<char*>(to), bytes});
  }
  call->accesses.push_back({to, bytes, 1});
  return submit(std::move(call));
}

}  // extern "C"
