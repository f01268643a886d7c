#loc7 = moe.fsc:5:9 to :19
#loc8 = moe.fsc:6:9 to :17
module {
  "fsc.def_extent"() {sym_name = "spec.tokens"} : () -> () moe.fsc:2:1 to 20:2
  "fsc.def_input"() {role = "route", sym_name = "spec.topk_idx", type = tensor<?x8xi64>} : () -> () moe.fsc:15:28 to :50
  "fsc.def_input"() {role = "weight", sym_name = "spec.topk_weights", type = tensor<?x8xf32>} : () -> () moe.fsc:16:28 to :46
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<7168xbf16>}], sym_name = "spec.token"} : () -> () moe.fsc:2:1 to 20:2
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<7168xbf16>}], sym_name = "spec.by_token"} : () -> () moe.fsc:18:12 to :36
  "fsc.def_placement"() {kind = "block", num_keys = 256 : i64, sym_name = "spec.by_expert.place"} : () -> () moe.fsc:14:3 to :29
  "fsc.def_packed"() {align = 128 : i64, compact = 0 : i64, padding = "fewest", placement = @spec.by_expert.place, segment = @spec.token, sym_name = "spec.by_expert"} : () -> () moe.fsc:18:37 to :58
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64 moe.fsc:5:9 to :19):
    %0 = "fsc.extent"() {extent = @spec.tokens} : () -> i64 moe.fsc:5:9 to :19
    %c8_i64 = arith.constant 8 : i64 moe.fsc:6:9 to :17
    "fsc.domain"(%0, %c8_i64) {operandSegmentSizes = array<i32: 0, 2>} : (i64, i64) -> () moe.fsc:18:3 to :58
  }, {
  ^bb0(%arg0: i64 moe.fsc:5:9 to :19, %arg1: i64 moe.fsc:6:9 to :17):
    %c8_i64 = arith.constant 8 : i64 moe.fsc:18:37 to :58
    %0 = arith.muli %arg0, %c8_i64 : i64 moe.fsc:18:37 to :58
    %1 = arith.addi %0, %arg1 : i64 moe.fsc:18:37 to :58
    %2 = "fsc.lookup"(%1) {input = @spec.topk_idx} : (i64) -> i64 moe.fsc:18:37 to :58
    %3 = "fsc.owner"(%2) {placement = @spec.by_expert.place} : (i64) -> i64 moe.fsc:18:37 to :58
    "fsc.drop"(%2) : (i64) -> () moe.fsc:18:3 to :58
    "fsc.relate"(%3, %2, %arg0) {lengths = [1], operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> () moe.fsc:18:3 to :58
  }) {fanout = 8 : i64, indices = ["t", "k"], node = ["cuda", "triton"], num_source_dims = 1 : i64, ragged = 0 : i64, segment = @spec.token, source = @spec.by_token, sym_name = "moe", target = @spec.by_expert} : () -> () moe.fsc:18:3 to :58
  "fsc.dispatch"() {balance = "none", dedup = ["node", "rank"], schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> () moe.fsc:18:3 to :58
  "fsc.combine"() {kind = "sum", weight = @spec.topk_weights} : () -> () moe.fsc:19:3 to :48
} moe.fsc:2:1 to 20:2
#loc = moe.fsc:2:1 to 20:2
#loc1 = moe.fsc:15:28 to :50
#loc2 = moe.fsc:16:28 to :46
#loc3 = moe.fsc:18:12 to :36
#loc4 = moe.fsc:14:3 to :29
#loc5 = moe.fsc:18:37 to :58
#loc6 = moe.fsc:18:3 to :58
#loc9 = moe.fsc:19:3 to :48
