// Combine kernel of rows with one destination that `sort` has moved, and that come back as they are.
//
// Where rows lie, some warps of a CTA, a team, take a tile of a peer: it has told the runs that lie here. On few SMs
// all warps begin so, as several teams, each of as many as have half of a tile under way at once, unless rows are
// single words. A team sends their rows back one behind the other, so what is read are runs, and what crosses NVLink
// are whole lines; then it sets the tile's flag there. At the source a warp takes a group of a tile's rows: own ones
// lie in their slots, and of the others it knows which of a peer's rows of the tile they are. Sending never waits, so
// every flag comes.
#pragma once
#include "copy_back.cuh"

namespace fuscoc {

constexpr int kTeams = 3, kTeamWarps = 8;  // that send on few SMs
struct SortedBackWords : BackWords {
  u32 item[kTeams][2];  // that a team takes next, in turn
};

template <class Shape, template <class> class Result>
struct SortedBack : RowCopies<Shape, SortedBackWords> {
  using Base = RowCopies<Shape, SortedBackWords>;
  using Base::call, Base::shared, Base::group, Base::warp, Base::lane, Base::chunks;
  using Base::flag, Base::staging, Base::own_row;
  using Word = typename Base::Word;
  static constexpr int run_chunks = int(ceil_div(Shape::num_keys, kWarp));  // of a tile: a run a lane
  static constexpr u32 kNothing = ~0u;

  const int team_warps, team, num_teams;  // of a team, this warp's, those that there are
  int* const slots;                       // of the rows of a tile, in the memory of the team: of two tiles in turn

  __device__ __forceinline__ i64 sources_of(int rank) const { return call.routing->num_sources_of[rank]; }
  __device__ __forceinline__ int team_threads() const { return team_warps * kWarp; }
  __device__ __forceinline__ void team_barrier() const {
    const int threads = team_threads(), number = team + 1;
    __syncwarp();  // a split warp would be counted twice by the barrier
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
  }
  // Tiles of the peer that has the most.
  __device__ __forceinline__ u32 most_tiles() const {
    i64 most = 0;
    for (int rank = 0; rank < call.num_ranks; ++rank)
      if (rank != call.rank) most = max(most, ceil_div(sources_of(rank), tile_rows<Shape>(sources_of(rank))));
    return u32(most);
  }

  // The runs of an item that lie here, by every warp of the team: {rows, first slot}, 0 behind them.
  __device__ __forceinline__ void load_runs(u32 item, u64 (&run)[run_chunks]) const {
    const RemoteItem at = remote_item(call, item);
    const int tile = tile_rows<Shape>(sources_of(at.source_rank));
    const i64 first = i64(at.index) * tile;
    const i64 num_rows = min(i64(tile), sources_of(at.source_rank) - first);
    const u64* const told = told_runs(call, call.rank, at.source_rank, first);
#pragma unroll
    for (int c = 0; c < run_chunks; ++c) {
      const int i = c * kWarp + lane;
      run[c] = i < min(num_rows, i64(Shape::num_keys)) ? __ldcg(told + i) : 0;
    }
  }
  // The slots of their rows; how many these are.
  __device__ __forceinline__ int list_slots(int* list, const u64 (&run)[run_chunks]) const {
    int before = 0;
    bool ended = false;
#pragma unroll
    for (int c = 0; c < run_chunks; ++c) {
      const u32 ends = __ballot_sync(kAllLanes, run[c] >> 32 == 0);
      const int num_runs = ended ? 0 : ends ? __ffs(ends) - 1 : kWarp;
      ended = ended || ends;
      const int rows = lane < num_runs ? int(run[c] >> 32) : 0, slot = int(u32(run[c]));
      const int end = sum_to_lane(rows);
      for (int r = warp % team_warps; r < num_runs; r += team_warps) {
        const int num = __shfl_sync(kAllLanes, rows, r), first_slot = __shfl_sync(kAllLanes, slot, r);
        int* const at = list + before + __shfl_sync(kAllLanes, end, r) - num;
        for (int i = lane; i < num; i += kWarp) at[i] = first_slot + i;
      }
      before += __shfl_sync(kAllLanes, end, kWarp - 1);
    }
    return before;
  }
  __device__ __forceinline__ void signal(u32 item) const {
    const RemoteItem at = remote_item(call, item);
    fence_system();
    store_relaxed(flag(at.source_rank, call.rank, at.index), shared.tag);
  }

  // The tiles of peers, by a team. A flag follows while the next tile's rows are read.
  __device__ void send() const {
    const u32 num_items = most_tiles() * (call.num_ranks - 1);
    u32* const counter = &call.state->next_reduce[shared.parity];
    const int thread = int(threadIdx.x) - team * team_threads();
    const bool leads = thread == 0;
    const auto draw = [&] { return leads ? num_teams * gridDim.x + atomicAdd(counter, 1u) : 0; };
    u32 item = team * gridDim.x + blockIdx.x, sent = kNothing, drawn = draw();
    u64 run[run_chunks];
    if (item < num_items) load_runs(item, run);
    for (int turn = 0; item < num_items; turn ^= 1) {
      int* const list = slots + turn * Shape::sorted_rows;
      const int num_rows = list_slots(list, run);
      if (leads) shared.item[team][turn] = drawn;
      team_barrier();  // the last tile's rows have been stored
      if (leads && sent != kNothing) signal(sent);
      const u32 next = shared.item[team][turn];
      drawn = draw();
      if (next < num_items) load_runs(next, run);
      const RemoteItem at = remote_item(call, item);
      char* const to = staging(at.source_rank, call.rank, i64(at.index) * tile_rows<Shape>(sources_of(at.source_rank)));
      this->copy(thread, team_threads(), num_rows, [&](int row) { return own_row(list[row]); },
                 [&](const Word& word, int i, u64) { word.store(to + i * Word::bytes); });
      sent = num_rows ? item : kNothing;
      item = next;
    }
    team_barrier();
    if (leads && sent != kNothing) signal(sent);
  }

  // A group of this rank, to its places.
  __device__ void receive(u32 item) const {
    const i64 first = i64(item) * group;
    const int num_rows = int(min(i64(group), call.num_sources - first));
    const int tile = tile_rows<Shape>(call.num_sources), index = int(first / tile);
    int code[chunks];
    u32 ranks = 0;
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int row = c * kWarp + lane;
      code[c] = row < num_rows ? call.codes[first + row] : -1;
      if (code[c] >= 0) ranks |= 1u << code_rank(code[c]);
    }
    const u32 senders = __reduce_or_sync(kAllLanes, ranks) & ~(1u << call.rank) & ~shared.refusing;
    bool there = true;
    if (senders >> lane & 1) there = this->wait_for(lane, index, flag(call.rank, lane, index));
    const u32 absent = lanes_without(there) | shared.refusing;
    this->template put<Result>(first, num_rows, code, absent, i64(index) * tile);
  }

  __device__ void run() const {
    if (team < num_teams && call.num_ranks > 1) send();
    this->take(&call.state->next_finalise[shared.parity], u32(ceil_div(call.num_sources, group)),
               [&](u32 item) { receive(item); });
  }
};

template <class Shape, template <class> class Result = InOrder>
__device__ __forceinline__ void sorted_back(const Call& call) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ SortedBackWords shared;
  begin_back(call, shared, Shape::combine_rows);
  const int warp = int(threadIdx.x) / kWarp;
  u64* const places = reinterpret_cast<u64*>(memory) + warp * Shape::combine_rows;
  int* const slots = reinterpret_cast<int*>(memory + sizeof(u64) * Shape::teams * Shape::combine_rows);
  constexpr u32 few_ctas = 32;  // where they, and not NVLink, are what sending takes
  static_assert(kTeams * kTeamWarps <= Shape::teams);
  const bool few = gridDim.x <= few_ctas && SortedBack<Shape, Result>::row_words > 1;
  const int team_warps = few ? kTeamWarps : call.reduce_teams, num_teams = few ? kTeams : 1, team = warp / team_warps;
  const SortedBack<Shape, Result> state{
      {{call, shared}, copied_group(shared.group), warp, int(threadIdx.x) % kWarp, places},
      team_warps, team, num_teams, slots + team * 2 * Shape::sorted_rows};
  if (goes_on(call, state, Result<Shape>::result_bytes(call))) state.run();
}

}  // namespace fuscoc
