/* A NIC for every rank of one machine: loaded into a process by LD_PRELOAD, this lets its sockets
 * send, and receive, no more than NIC_GB_PER_SECOND (1e9 bytes, each way), all together.
 *
 * Token buckets around what NCCL's socket transport calls: send() and recv() that may not block.
 * One that comes too early moves nothing, as if the socket's buffer were full (or empty), and NCCL
 * tries again. What is received too slowly fills the buffers of its senders, as behind a switch.
 * Small calls, which set connections up and announce messages, pass.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

enum { OUT, IN };
enum { SMALL_BYTES = 16 << 10, MOST_BYTES = 128 << 10, BUCKET_NS = 500 * 1000 };

static ssize_t (*real_send)(int, const void *, size_t, int);
static ssize_t (*real_recv)(int, void *, size_t, int);
static double ns_per_byte;

/* When the bucket of each direction will hold tokens again, in nanoseconds. */
static _Atomic int64_t free_at[2];

__attribute__((constructor)) static void look_up(void) {
    real_send = (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    real_recv = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
    const char *rate = getenv("NIC_GB_PER_SECOND");
    if (rate && atof(rate) > 0) ns_per_byte = 1.0 / atof(rate);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static int is_limited(size_t bytes, int flags) {
    if (!real_send) look_up();
    return ns_per_byte > 0 && bytes >= SMALL_BYTES && (flags & MSG_DONTWAIT);
}

/* What a call may move, or 0. */
static size_t allowed(int way, size_t bytes) {
    if (atomic_load(&free_at[way]) > now()) {
        errno = EAGAIN;
        return 0;
    }
    return bytes < MOST_BYTES ? bytes : MOST_BYTES;
}

static ssize_t moved(int way, ssize_t bytes) {
    if (bytes <= 0) return bytes;
    int64_t full = now() - BUCKET_NS, old = atomic_load(&free_at[way]), new;
    do {
        new = (old > full ? old : full) + (int64_t)(bytes * ns_per_byte);
    } while (!atomic_compare_exchange_weak(&free_at[way], &old, new));
    return bytes;
}

ssize_t send(int socket, const void *data, size_t bytes, int flags) {
    if (!is_limited(bytes, flags)) return real_send(socket, data, bytes, flags);
    size_t most = allowed(OUT, bytes);
    return most ? moved(OUT, real_send(socket, data, most, flags)) : -1;
}

ssize_t recv(int socket, void *data, size_t bytes, int flags) {
    if (!is_limited(bytes, flags)) return real_recv(socket, data, bytes, flags);
    size_t most = allowed(IN, bytes);
    return most ? moved(IN, real_recv(socket, data, most, flags)) : -1;
}
