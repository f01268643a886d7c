// before
module {
  "fsc.def_extent"() {sym_name = "spec.tokens"} : () -> ()
  "fsc.def_input"() {role = "route", sym_name = "spec.topk_idx", type = tensor<?x8xi64>} : () -> ()
  "fsc.def_input"() {role = "weight", sym_name = "spec.topk_weights", type = tensor<?x8xf32>} : () -> ()
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<7168xf8E4M3FN>}, {name = "scales", type = tensor<56xf32>}], sym_name = "spec.token"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<7168xbf16>}], sym_name = "spec.by_token"} : () -> ()
  "fsc.def_placement"() {kind = "block", num_keys = 256 : i64, sym_name = "spec.by_expert.place"} : () -> ()
  "fsc.def_packed"() {align = 128 : i64, compact = 0 : i64, padding = "fewest", placement = @spec.by_expert.place, segment = @spec.token, sym_name = "spec.by_expert"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %0 = "fsc.extent"() {extent = @spec.tokens} : () -> i64
    %c8_i64 = arith.constant 8 : i64
    "fsc.domain"(%0, %c8_i64) {operandSegmentSizes = array<i32: 0, 2>} : (i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64, %arg1: i64):
    %c8_i64 = arith.constant 8 : i64
    %0 = arith.muli %arg0, %c8_i64 : i64
    %1 = arith.addi %0, %arg1 : i64
    %2 = "fsc.lookup"(%1) {input = @spec.topk_idx} : (i64) -> i64
    %3 = "fsc.owner"(%2) {placement = @spec.by_expert.place} : (i64) -> i64
    "fsc.drop"(%2) : (i64) -> ()
    "fsc.relate"(%3, %2, %arg0) {lengths = [1], operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
  }) {casts = [{block = 128 : i64, field = "x", scales = "scales"}], fanout = 8 : i64, indices = ["t", "k"], node = ["cuda", "triton"], num_source_dims = 1 : i64, ragged = 0 : i64, segment = @spec.token, source = @spec.by_token, sym_name = "moe", target = @spec.by_expert} : () -> ()
  "fsc.dispatch"() {balance = "rebalance", dedup = ["node", "rank"], schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()
  "fsc.combine"() {kind = "sum", weight = @spec.topk_weights} : () -> ()
}

// after
module {
  "fsc.def_extent"() {sym_name = "spec.tokens"} : () -> ()
  "fsc.def_input"() {role = "route", sym_name = "spec.topk_idx", type = tensor<?x8xi64>} : () -> ()
  "fsc.def_input"() {role = "weight", sym_name = "spec.topk_weights", type = tensor<?x8xf32>} : () -> ()
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<7168xf8E4M3FN>}, {name = "scales", type = tensor<56xf32>}], sym_name = "spec.token"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<7168xbf16>}], sym_name = "spec.by_token"} : () -> ()
  "fsc.def_placement"() {kind = "block", num_keys = 256 : i64, sym_name = "spec.by_expert.place"} : () -> ()
  "fsc.def_packed"() {align = 128 : i64, compact = 0 : i64, padding = "fewest", placement = @spec.by_expert.place, segment = @spec.token, sym_name = "spec.by_expert"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %0 = "fsc.extent"() {extent = @spec.tokens} : () -> i64
    %c8_i64 = arith.constant 8 : i64
    "fsc.domain"(%0, %c8_i64) {operandSegmentSizes = array<i32: 0, 2>} : (i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64, %arg1: i64):
    %c8_i64 = arith.constant 8 : i64
    %0 = arith.muli %arg0, %c8_i64 : i64
    %1 = arith.addi %0, %arg1 : i64
    %2 = "fsc.lookup"(%1) {input = @spec.topk_idx} : (i64) -> i64
    %3 = "fsc.owner"(%2) {placement = @spec.by_expert.place} : (i64) -> i64
    "fsc.drop"(%2) : (i64) -> ()
    "fsc.relate"(%3, %2, %arg0) {lengths = [1], operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
  }) {casts = [{block = 128 : i64, field = "x", scales = "scales"}], fanout = 8 : i64, indices = ["t", "k"], node = ["cuda", "triton"], num_source_dims = 1 : i64, ragged = 0 : i64, segment = @spec.token, source = @spec.by_token, sym_name = "moe", target = @spec.by_expert} : () -> ()
  "fsc.dispatch"() {balance = "rebalance", dedup = ["node", "rank"], schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()
  "fsc.combine"() {kind = "sum", weight = @spec.topk_weights} : () -> ()
}
