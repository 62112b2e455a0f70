/* What the native handle of a stand-in stream points to. Plain C, so that the stand-in libnccl.so.2 needs to link to
 * nothing of the stand-in's. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define STANDIN_MAGIC 0x5354414e44494e32ull

#ifdef __cplusplus
extern "C" {
#endif

struct standin_access {
  const void* begin;
  size_t bytes;
  int write;
};

struct standin_stream {
  uint64_t magic;
  /* begin is called when the stream is given the call: at once, or at each replay of the graph that captures it. poll is
   * called when the stream's turn has come. 1: done, 0: call me again, -1: failed. destroy: after the last poll. */
  void (*enqueue)(struct standin_stream*, const char* name, const struct standin_access*, size_t accesses,
                  void (*begin)(void*), int (*poll)(void*), void (*destroy)(void*), void* argument);
};

#ifdef __cplusplus
}
#endif
