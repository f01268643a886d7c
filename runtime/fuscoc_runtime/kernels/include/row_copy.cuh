// A warp's row buffer: one segment (all its fields) between global and shared memory.
//
// On sm_90 a field whose rows are multiples of 16 bytes moves by 1-D TMA bulk copies, issued by
// lane 0 and asynchronous; any other field, and every field on older devices, moves by ordinary
// loads and stores of the widest unit its rows allow. Segments larger than the buffer move in
// several passes over equal parts.
#pragma once
#include "base.cuh"

namespace fuscoc {

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return u32(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ u64 evict_first_policy() {
  u64 policy = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}
__device__ __forceinline__ u64 evict_normal_policy() {
  u64 policy = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void bulk_load(u32 shared, const char* global, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], %4;" ::"r"(shared), "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void bulk_store(char* global, u32 shared, u32 bytes, u64 policy) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(global),
               "r"(shared), "r"(bytes), "l"(policy)
               : "memory");
}
// Of the stores of this thread: ends a batch, waits until all have left shared memory, or all but the latest
// batch, or until all have arrived.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void bulk_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulk_read_but_latest() { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }
__device__ __forceinline__ void bulk_arrived() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
template <int kLatest>
__device__ __forceinline__ void bulk_arrived_but() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kLatest) : "memory");
}
#endif

template <class Unit>
__device__ __forceinline__ void copy_units(char* to, const char* from, int bytes, int lane) {
  // through L2: a peer may have written the source while this kernel runs
  for (int i = lane; i < bytes / int(sizeof(Unit)); i += kWarp)
    reinterpret_cast<Unit*>(to)[i] = __ldcg(reinterpret_cast<const Unit*>(from) + i);
}
template <class Unit>
__device__ __forceinline__ void write_units(char* to, const char* from, int bytes, int lane) {
  for (int i = lane; i < bytes / int(sizeof(Unit)); i += kWarp)
    reinterpret_cast<Unit*>(to)[i] = reinterpret_cast<const Unit*>(from)[i];
}

// The same of a part of a scattered field that begins with some byte; a unit lies within a run.
template <class Unit, class From>
__device__ __forceinline__ void gather_units(char* to, const From& from, int field, int begin, int bytes, int lane) {
  for (int i = lane; i < bytes / int(sizeof(Unit)); i += kWarp)
    reinterpret_cast<Unit*>(to)[i] = __ldcg(reinterpret_cast<const Unit*>(from.at(field, begin + i * int(sizeof(Unit)))));
}

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

// Where the fields of a row are, `at(field)`, and how long they are. One that is scattered lies in runs,
// and says where each byte of a field is, `at(field, byte)`.
template <class FieldLayout, class At>
struct Row {
  using Layout = FieldLayout;
  static constexpr bool scattered = false;
  At at;
  __device__ __forceinline__ auto operator()(int field) const { return at(field); }
};
template <class Layout, class At>
__device__ __forceinline__ Row<Layout, At> row_of(At at) {
  return {at};
}

constexpr int kLeastBulkRun = 128;
constexpr int kBulkLine = 128;  // bulk copies are cut into such lines

template <class Shape>
struct RowBuffer {
  char* buffer;  // this warp's Shape::buffer_bytes of shared memory, 128-byte aligned
  u32 barrier;   // its mbarrier
  u32 phase;
  int lane;

  template <class Layout = Shape>
  __device__ static constexpr bool bulk(int field) {
    return kBulkCopies && Layout::unit_bytes(field) == 16;
  }

  __device__ __forceinline__ void init(char* own_buffer, u64* own_barrier, int own_lane) {
    buffer = own_buffer;
    barrier = shared_address(own_barrier);
    phase = 0;
    lane = own_lane;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (lane == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async;" ::: "memory");
    }
#endif
    __syncwarp();
  }

  // By one lane: so many bytes will have come by bulk copies when the buffer is loaded.
  __device__ __forceinline__ void expect(u32 bytes) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
  }

  // Starts reading a segment part; `from` is a `Row`.
  template <class From>
  __device__ __forceinline__ void load(int pass, From from, u64 policy) {
    if constexpr (From::scattered) gather(pass, from, policy);
    else fetch(pass, from, policy);
  }
  template <class From>
  __device__ __forceinline__ void fetch(int pass, From from, u64 policy) {
    using Layout = typename From::Layout;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (lane == 0) {
      u32 expected = 0;
#pragma unroll
      for (int f = 0; f < Layout::num_fields; ++f)
        if (bulk<Layout>(f)) expected += Layout::part_bytes(f, pass);
      expect(expected);
#pragma unroll
      for (int f = 0; f < Layout::num_fields; ++f)
        if (bulk<Layout>(f) && Layout::part_bytes(f, pass) > 0)
          bulk_load(shared_address(buffer + Layout::buffer_offset(f)), from(f) + Layout::part_offset(f, pass),
                    Layout::part_bytes(f, pass), barrier, policy);
    }
#endif
#pragma unroll
    for (int f = 0; f < Layout::num_fields; ++f) {
      if (bulk<Layout>(f)) continue;
      char* to = buffer + Layout::buffer_offset(f);
      const char* at = from(f) + Layout::part_offset(f, pass);
      const int bytes = Layout::part_bytes(f, pass);
      if (Layout::unit_bytes(f) == 16) copy_units<uint4>(to, at, bytes, lane);
      if (Layout::unit_bytes(f) == 8) copy_units<uint2>(to, at, bytes, lane);
      if (Layout::unit_bytes(f) == 4) copy_units<u32>(to, at, bytes, lane);
      if (Layout::unit_bytes(f) == 2) copy_units<u16>(to, at, bytes, lane);
      if (Layout::unit_bytes(f) == 1) copy_units<unsigned char>(to, at, bytes, lane);
    }
  }

  // The same of a scattered row. A run is a bulk copy, if it is long enough to be worth one, or what the
  // part has of it; every lane starts some. Other fields come by units, by ordinary stores to the buffer.
  template <class Layout>
  __device__ static constexpr bool bulk_runs(int field) {
    return bulk<Layout>(field) && Layout::run_bytes(field) >= kLeastBulkRun;
  }
  template <class From>
  __device__ __forceinline__ void gather(int pass, const From& from, u64 policy) {
    using Layout = typename From::Layout;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (lane == 0) {
      u32 expected = 0;
#pragma unroll
      for (int f = 0; f < Layout::num_fields; ++f)
        if (bulk_runs<Layout>(f)) expected += Layout::part_bytes(f, pass);
      expect(expected);
    }
    __syncwarp();  // what arrives is expected
#pragma unroll
    for (int f = 0; f < Layout::num_fields; ++f) {
      if (!bulk_runs<Layout>(f)) continue;
      const int run = Layout::run_bytes(f), begin = Layout::part_offset(f, pass);
      const int end = begin + Layout::part_bytes(f, pass);
      for (int i = begin / run + lane; begin < end && i <= (end - 1) / run; i += kWarp) {
        const int first = max(i * run, begin), last = min((i + 1) * run, end);
        bulk_load(shared_address(buffer + Layout::buffer_offset(f) + (first - begin)), from.at(f, first), last - first,
                  barrier, policy);
      }
    }
#endif
    bool fence = false;  // bulk stores read what ordinary ones have written
#pragma unroll
    for (int f = 0; f < Layout::num_fields; ++f) {
      if (bulk_runs<Layout>(f)) continue;
      fence = true;
      char* to = buffer + Layout::buffer_offset(f);
      const int begin = Layout::part_offset(f, pass), bytes = Layout::part_bytes(f, pass);
      if (Layout::unit_bytes(f) == 16) gather_units<uint4>(to, from, f, begin, bytes, lane);
      if (Layout::unit_bytes(f) == 8) gather_units<uint2>(to, from, f, begin, bytes, lane);
      if (Layout::unit_bytes(f) == 4) gather_units<u32>(to, from, f, begin, bytes, lane);
      if (Layout::unit_bytes(f) == 2) gather_units<u16>(to, from, f, begin, bytes, lane);
      if (Layout::unit_bytes(f) == 1) gather_units<unsigned char>(to, from, f, begin, bytes, lane);
    }
    if (fence) fence_bulk_proxy();
  }

  // Waits until the part is in shared memory.
  __device__ __forceinline__ void loaded() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (lane == 0) {
      u32 done = 0;
      while (!done)
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done)
            : "r"(barrier), "r"(phase)
            : "memory");
    }
    phase ^= 1;
#endif
    __syncwarp();
  }

  // The same for a row that may have come from the source: it is cast to what arrives.
  template <class From>
  __device__ __forceinline__ void loaded(From) {
    loaded();
    if constexpr (!kSame<typename From::Layout, Shape>) Shape::cast(buffer, lane);
  }

  // Starts writing the part to one destination; `to(field)` is the address of the segment's field.
  template <class To>
  __device__ __forceinline__ void store(int pass, To to, u64 policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (lane == 0) {
#pragma unroll
      for (int f = 0; f < Shape::num_fields; ++f)
        if (bulk(f) && Shape::part_bytes(f, pass) > 0)
          bulk_store(to(f) + Shape::part_offset(f, pass), shared_address(buffer + Shape::buffer_offset(f)),
                     Shape::part_bytes(f, pass), policy);
    }
#endif
#pragma unroll
    for (int f = 0; f < Shape::num_fields; ++f) {
      if (bulk(f)) continue;
      const char* from = buffer + Shape::buffer_offset(f);
      char* at = to(f) + Shape::part_offset(f, pass);
      const int bytes = Shape::part_bytes(f, pass);
      if (Shape::unit_bytes(f) == 16) write_units<uint4>(at, from, bytes, lane);
      if (Shape::unit_bytes(f) == 8) write_units<uint2>(at, from, bytes, lane);
      if (Shape::unit_bytes(f) == 4) write_units<u32>(at, from, bytes, lane);
      if (Shape::unit_bytes(f) == 2) write_units<u16>(at, from, bytes, lane);
      if (Shape::unit_bytes(f) == 1) write_units<unsigned char>(at, from, bytes, lane);
    }
  }

  // Ends a batch of stores. Every batch is followed by reusable() before the next load.
  __device__ __forceinline__ void commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (lane == 0) bulk_commit();
#endif
  }
  // Waits until the buffer has been read and may be overwritten.
  __device__ __forceinline__ void reusable() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (lane == 0) bulk_read();
#endif
    __syncwarp();
  }
  // Waits until everything stored has arrived (not merely left the buffer).
  __device__ __forceinline__ void arrived() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (lane == 0) bulk_arrived();
#endif
    __syncwarp();
  }
};

}  // namespace fuscoc
