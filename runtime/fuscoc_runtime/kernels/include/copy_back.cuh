// Combine kernel where a segment has one destination and its row comes back as it is: a warp takes the rows
// of many segments at once, a group, and its lanes the words of all of them.
//
// Where rows lie, a warp stores those that it has of a peer's group one behind the other into the staging
// memory of the source, and then sets the group's flag there: so what crosses NVLink are whole lines. At
// the source a warp copies the rows of a group to their places: own rows from their slots, and the n-th row
// from a rank is that of its n-th point in the group. Some warps begin with what goes to peers, the others
// with what is for this rank; sending never waits, so every flag comes.
#pragma once
#include "back.cuh"
#include "results.cuh"
#include "vector.cuh"

namespace fuscoc {

// Rows that come back as they are: where they lie, and how some threads copy many of them.
template <class Shape, class Words>
struct RowCopies : Back<Words> {
  using Base = Back<Words>;
  using Base::call, Base::shared;
  using Word = Vector<Raw, Shape::unit_bytes(0)>;
  static constexpr i64 row_bytes = Shape::row_bytes(0);
  static constexpr int row_words = int(row_bytes / Word::bytes);
  static constexpr int chunks = int(ceil_div(Shape::combine_rows, kWarp));  // of a group: a point a lane
  static constexpr u64 kNone = 0, kLost = 1;  // where rows lie that do not come, and that should have

  const int group;      // segments of a group
  const int warp, lane;
  u64* const places;    // where a group's rows lie, in this warp's memory

  __device__ __forceinline__ u64* flag(int window, int from, u32 index) const {
    return reinterpret_cast<u64*>(call.window[window] + call.combine_flags_at) + from * call.max_sources + index;
  }
  __device__ __forceinline__ char* staging(int window, int from, i64 source) const {
    return call.window[window] + call.staging_at + (from * call.max_sources + source) * row_bytes;
  }
  __device__ __forceinline__ u64 own_row(i64 slot) const { return u64(call.rows + slot * row_bytes); }

  // By some threads: copies the words of rows that lie at `place_of(row)`, `team_batch` a thread at once. `store`
  // puts word `i` of them all, whose row lies at a place.
  template <class PlaceOf, class Store>
  __device__ __forceinline__ void copy(int thread, int num_threads, int num_rows, PlaceOf place_of, Store store) const {
    constexpr int batch = Shape::team_batch;
    const int num_words = num_rows * row_words;
#pragma unroll 1
    for (int first = thread; first < num_words; first += batch * num_threads) {
      u64 place[batch];
      Word word[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const int i = first + b * num_threads;
        place[b] = i < num_words ? place_of(i / row_words) : kNone;
      }
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const int w = (first + b * num_threads) % row_words;
        word[b].fill(place[b] == kLost ? ~0u : 0);
        if (place[b] > kLost) word[b].load(reinterpret_cast<const char*>(place[b]) + w * Word::bytes);
      }
#pragma unroll
      for (int b = 0; b < batch; ++b)
        if (const int i = first + b * num_threads; i < num_words) store(word[b], i, place[b]);
    }
  }
  // The rows in `places`, by this warp.
  template <class Store>
  __device__ __forceinline__ void copy_placed(int num_rows, Store store) const {
    copy(lane, kWarp, num_rows, [&](int row) { return places[row]; }, store);
  }
  // Rows of this rank from segment `first` on, by this warp: own ones from their slots, and those of another rank
  // by their codes from its row `staged` in staging. Of ranks that are `absent` there is poison.
  template <template <class> class Result>
  __device__ __forceinline__ void put(i64 first, int num_rows, const int (&code)[chunks], u32 absent, i64 staged) const {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int row = c * kWarp + lane;
      const int rank = code_rank(code[c]);
      if (row >= num_rows) continue;
      if (code[c] < 0) places[row] = kNone;
      else if (absent >> rank & 1) places[row] = kLost;
      else if (rank == call.rank) places[row] = own_row(code_slot(code[c]));
      else places[row] = u64(staging(call.rank, rank, staged + code_slot(code[c])));
    }
    __syncwarp();
    copy_placed(num_rows, [&](const Word& word, int i, u64 place) {
      if (!Result<Shape>::leaves_out || place != kNone) word.store(Result<Shape>::word(call, first, i));
    });
    __syncwarp();  // before the next places are written
  }
};

template <class Shape, template <class> class Result>
struct CopyBack : RowCopies<Shape, BackWords> {
  using Base = RowCopies<Shape, BackWords>;
  using Base::call, Base::shared, Base::group, Base::warp, Base::lane, Base::places, Base::chunks;
  using Base::flag, Base::staging, Base::own_row;
  using Word = typename Base::Word;

  // Where the rows lie that are here of a peer's group, as its points say; how many they are.
  __device__ __forceinline__ int find_points(int source_rank, int first, int num_points) const {
    const u64* const points =
        reinterpret_cast<const u64*>(call.window[call.rank] + call.points_at) + source_rank * call.max_sources + first;
    int code[chunks], num_rows = 0;
#pragma unroll
    for (int c = 0; c < chunks; ++c)
      code[c] = c * kWarp + lane < num_points ? int(u32(__ldcg(points + c * kWarp + lane))) : -1;
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const bool here = code[c] >= 0 && code_rank(code[c]) == call.rank;
      const u32 lanes = __ballot_sync(kAllLanes, here);
      if (here) places[num_rows + __popc(lanes & lanes_below())] = own_row(code_slot(code[c]));
      num_rows += __popc(lanes);
    }
    return num_rows;
  }
  // A group of a peer: what is here of it, to there.
  __device__ void send(const RemoteItem& at) const {
    const int first = at.index * group;
    const int num_points = min(group, call.routing->num_sources_of[at.source_rank] - first);
    const int num_rows = find_points(at.source_rank, first, num_points);
    if (num_rows == 0) return;
    __syncwarp();
    char* const to = staging(at.source_rank, call.rank, first);
    this->copy_placed(num_rows, [&](const Word& word, int i, u64) { word.store(to + i * Word::bytes); });
    __syncwarp();
    if (lane == 0) {
      fence_system();
      store_relaxed(flag(at.source_rank, call.rank, at.index), shared.tag);
    }
  }

  // The ranks that rows of a group come from, a bit each. Their codes get the number of the row, among those
  // of its rank, in place of its slot there.
  __device__ __forceinline__ u32 number_rows(int (&code)[chunks]) const {
    u32 senders = 0;
    for (int rank = 0; rank < call.num_ranks; ++rank) {
      if (rank == call.rank) continue;
      int num_rows = 0;
#pragma unroll
      for (int c = 0; c < chunks; ++c) {
        const bool there = code[c] >= 0 && code_rank(code[c]) == rank;
        const u32 lanes = __ballot_sync(kAllLanes, there);
        if (there) code[c] = code_of(rank, num_rows + __popc(lanes & lanes_below()));
        num_rows += __popc(lanes);
      }
      if (num_rows) senders |= 1u << rank;
    }
    return senders;
  }

  // A group of this rank, to its places.
  __device__ void receive(u32 item) const {
    const i64 first = i64(item) * group;
    const int num_rows = int(min(i64(group), call.num_sources - first));
    int code[chunks];
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int row = c * kWarp + lane;
      code[c] = row < num_rows ? call.codes[first + row] : -1;
    }
    const u32 senders = number_rows(code);
    bool there = true;
    if ((senders & ~shared.refusing) >> lane & 1) there = this->wait_for(lane, item, flag(call.rank, lane, item));
    const u32 absent = lanes_without(there) | shared.refusing;
    this->template put<Result>(first, num_rows, code, absent, first);
  }

  __device__ void run() const {
    const u32 num_sent = num_remote_items(call, group);
    const u32 num_own = u32(ceil_div(call.num_sources, group));
    u32* const next_sent = &call.state->next_reduce[shared.parity];
    u32* const next_own = &call.state->next_finalise[shared.parity];
#pragma unroll 1
    for (int turn = warp < call.reduce_teams ? 0 : 1; turn < 3; ++turn) {
      if (turn == 1) this->take(next_own, num_own, [&](u32 item) { receive(item); });
      else this->take(next_sent, num_sent, [&](u32 item) { send(remote_item(call, item)); });
    }
  }
};

template <class Shape, template <class> class Result = InOrder>
__device__ __forceinline__ void copy_back(const Call& call) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ BackWords shared;
  begin_back(call, shared, Shape::combine_rows);
  const int warp = int(threadIdx.x) / kWarp;
  u64* const places = reinterpret_cast<u64*>(memory) + warp * Shape::combine_rows;
  const CopyBack<Shape, Result> state{{{call, shared}, copied_group(shared.group), warp, int(threadIdx.x) % kWarp, places}};
  if (goes_on(call, state, Result<Shape>::result_bytes(call))) state.run();
}

}  // namespace fuscoc
