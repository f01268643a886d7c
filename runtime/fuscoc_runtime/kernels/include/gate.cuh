// Gates of a CTA: barriers in shared memory that so many arrive at, bytes of bulk copies too, and which others
// wait for without being counted. They pass again and again, and who waits keeps the parity of the passing.
#pragma once
#include "row_copy.cuh"

namespace fuscoc {

using Gate = u64;

__device__ __forceinline__ void open_gate(Gate* gate, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(gate)), "r"(count) : "memory");
}
// Behind `open_gate`, by the same thread: bulk copies see it, too.
__device__ __forceinline__ void gates_open() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  fence_bulk_proxy();
}
__device__ __forceinline__ void arrive(Gate* gate) {
  asm volatile("{\n\t.reg .b64 s;\n\tmbarrier.arrive.shared.b64 s, [%0];\n\t}" ::"r"(shared_address(gate)) : "memory");
}
// Orders what this thread has read and written in shared memory before what bulk copies do there next.
__device__ __forceinline__ void leave_to_bulk_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// With so many bytes of bulk copies, which may have come already.
__device__ __forceinline__ void arrive_with(Gate* gate, u32 bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(gate)), "r"(bytes) : "memory");
#else
  arrive(gate);
#endif
}
// Until the passing of this parity: the first one has 0.
__device__ __forceinline__ void wait_at(Gate* gate, u32 parity) {
  u32 done = 0;
  while (!done) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(gate)), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(shared_address(gate)), "r"(parity)
        : "memory");
#endif
  }
}

}  // namespace fuscoc
