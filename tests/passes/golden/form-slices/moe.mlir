// before
module {
  "fsc.def_extent"() {sym_name = "spec.tokens"} : () -> ()
  "fsc.def_input"() {role = "route", sym_name = "spec.topk_idx", type = tensor<?x8xi64>} : () -> ()
  "fsc.def_input"() {role = "weight", sym_name = "spec.topk_weights", type = tensor<?x8xf32>} : () -> ()
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<7168xbf16>}], sym_name = "spec.token"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<7168xbf16>}], num_dims = 1 : i64, sym_name = "spec.by_token"} : () -> ()
  "fsc.def_placement"() {kind = "block", num_keys = 256 : i64, sym_name = "spec.by_expert.place"} : () -> ()
  "fsc.def_packed"() {align = 128 : i64, placement = @spec.by_expert.place, segment = @spec.token, sym_name = "spec.by_expert"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %c1_i64 = arith.constant 1 : i64
    %c8_i64 = arith.constant 8 : i64
    %0 = "fsc.extent"() {extent = @spec.tokens} : () -> i64
    "fsc.domain"(%c1_i64, %0, %c8_i64) {operandSegmentSizes = array<i32: 1, 2>} : (i64, i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64, %arg1: i64):
    %c8_i64 = arith.constant 8 : i64
    %0 = arith.muli %arg0, %c8_i64 : i64
    %1 = arith.addi %0, %arg1 : i64
    %2 = "fsc.lookup"(%1) {input = @spec.topk_idx} : (i64) -> i64
    %3 = "fsc.owner"(%2) {placement = @spec.by_expert.place} : (i64) -> i64
    "fsc.drop"(%2) : (i64) -> ()
    "fsc.point"(%arg0, %3, %2) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
  }) {fanout = 8 : i64, indices = ["t", "k"], num_source_dims = 1 : i64, ragged = 0 : i64, runs = [{cell_elems = 7168 : i64, copy_dtype = i64, dtype = bf16, name = "x", run_elems = 7168 : i64, seg_elems = 7168 : i64, unit_bytes = 16 : i64}], segment = @spec.token, source = @spec.by_token, sym_name = "moe", target = @spec.by_expert} : () -> ()
  "fsc.path"() ({
    "fsc.hop"() {dst = "landing", forwarder = "same_local_rank", per = "node", scope = "node", src = "source"} : () -> ()
    "fsc.hop"() {dst = "target", per = "rank", scope = "rank", src = "source"} : () -> ()
    "fsc.hop"() {dst = "target", forwarder = "same_local_rank", per = "rank", scope = "rank", src = "landing"} : () -> ()
    "fsc.hop"() {dst = "target", per = "point", scope = "local", src = "target"} : () -> ()
  }) {direction = "dispatch", schedule = "pairwise", shuffle = @moe, slice_bytes = 8388608 : i64, sym_name = "moe_dispatch"} : () -> ()
  "fsc.path"() ({
    "fsc.collect"() {dst = "target", kind = "sum", per = "point", scope = "local", src = "target", weight = @spec.topk_weights} : () -> ()
    "fsc.collect"() {dst = "landing", forwarder = "same_local_rank", kind = "sum", per = "rank", scope = "rank", src = "target"} : () -> ()
    "fsc.collect"() {dst = "source", kind = "sum", per = "rank", scope = "rank", src = "target"} : () -> ()
    "fsc.collect"() {dst = "source", forwarder = "same_local_rank", kind = "sum", per = "node", scope = "node", src = "landing"} : () -> ()
  }) {direction = "combine", schedule = "pairwise", shuffle = @moe, slice_bytes = 8388608 : i64, sym_name = "moe_combine"} : () -> ()
}

// after
module {
  "fsc.def_extent"() {sym_name = "spec.tokens"} : () -> ()
  "fsc.def_input"() {role = "route", sym_name = "spec.topk_idx", type = tensor<?x8xi64>} : () -> ()
  "fsc.def_input"() {role = "weight", sym_name = "spec.topk_weights", type = tensor<?x8xf32>} : () -> ()
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<7168xbf16>}], sym_name = "spec.token"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<7168xbf16>}], num_dims = 1 : i64, sym_name = "spec.by_token"} : () -> ()
  "fsc.def_placement"() {kind = "block", num_keys = 256 : i64, sym_name = "spec.by_expert.place"} : () -> ()
  "fsc.def_packed"() {align = 128 : i64, placement = @spec.by_expert.place, segment = @spec.token, sym_name = "spec.by_expert"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %c1_i64 = arith.constant 1 : i64
    %c8_i64 = arith.constant 8 : i64
    %0 = "fsc.extent"() {extent = @spec.tokens} : () -> i64
    "fsc.domain"(%c1_i64, %0, %c8_i64) {operandSegmentSizes = array<i32: 1, 2>} : (i64, i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64, %arg1: i64):
    %c8_i64 = arith.constant 8 : i64
    %0 = arith.muli %arg0, %c8_i64 : i64
    %1 = arith.addi %0, %arg1 : i64
    %2 = "fsc.lookup"(%1) {input = @spec.topk_idx} : (i64) -> i64
    %3 = "fsc.owner"(%2) {placement = @spec.by_expert.place} : (i64) -> i64
    "fsc.drop"(%2) : (i64) -> ()
    "fsc.point"(%arg0, %3, %2) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
  }) {fanout = 8 : i64, indices = ["t", "k"], num_source_dims = 1 : i64, ragged = 0 : i64, runs = [{cell_elems = 7168 : i64, copy_dtype = i64, dtype = bf16, name = "x", run_elems = 7168 : i64, seg_elems = 7168 : i64, unit_bytes = 16 : i64}], segment = @spec.token, source = @spec.by_token, sym_name = "moe", target = @spec.by_expert} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {columns = ["src_offset", "dst_row"], per = "node", sym_name = "net_send"} : () -> ()
    "fsc.gather_send"() {dst = "slice", list = @net_send, scope = "node", src = "source"} : () -> ()
    "fsc.exchange"() {direction = "forward", forwarder = "same_local_rank", list = @net_send, schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()
    "fsc.descriptors"() {columns = ["src_offset", "dst_peer", "dst_slot"], per = "rank", sym_name = "direct"} : () -> ()
    "fsc.gather_send"() {dst = "target", list = @direct, scope = "rank", signal = 0 : i64, src = "source"} : () -> ()
    "fsc.descriptors"() {columns = ["src_row", "dst_peer", "dst_slot"], per = "rank", sym_name = "forward"} : () -> ()
    "fsc.gather_send"() {dst = "target", list = @forward, scope = "rank", signal = 1 : i64, src = "landing"} : () -> ()
    "fsc.descriptors"() {columns = ["src_slot", "dst_slot"], per = "point", sym_name = "local"} : () -> ()
    "fsc.scatter_recv"() {dst = "target", list = @local, src = "target", wait = [0, 1]} : () -> ()
  }) {direction = "dispatch", shuffle = @moe, sym_name = "moe_dispatch"} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {columns = ["dst_peer", "dst_row", "term_begin", "term_end"], per = "rank", sym_name = "reduce_forward", terms = ["term_slot", "term_point"]} : () -> ()
    "fsc.reduce"() {dst = "forward_staging", kind = "sum", list = @reduce_forward, rows = [{acc = f32, dst = f32, name = "x", src = bf16}], scope = "rank", signal = 3 : i64, src = "target", weight = @spec.topk_weights} : () -> ()
    "fsc.descriptors"() {columns = ["dst_peer", "dst_row", "term_begin", "term_end"], per = "rank", sym_name = "reduce_direct", terms = ["term_slot", "term_point"]} : () -> ()
    "fsc.reduce"() {dst = "staging", kind = "sum", list = @reduce_direct, rows = [{acc = f32, dst = bf16, name = "x", src = bf16}], scope = "rank", signal = 2 : i64, src = "target", weight = @spec.topk_weights} : () -> ()
    "fsc.descriptors"() {columns = ["term_begin", "term_end", "dst_row"], per = "node", sym_name = "reduce_node"} : () -> ()
    "fsc.reduce"() {dst = "slice", kind = "sum", list = @reduce_node, rows = [{acc = f32, dst = bf16, name = "x", src = f32}], scope = "node", src = "forward_staging", wait = [3]} : () -> ()
    "fsc.exchange"() {direction = "back", forwarder = "same_local_rank", list = @moe_dispatch::@net_send, schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()
    "fsc.descriptors"() {columns = ["dst_offset", "term_begin", "term_end"], per = "source", sym_name = "reduce_source", terms = ["term_row"]} : () -> ()
    "fsc.reduce"() {dst = "source", kind = "sum", list = @reduce_source, rows = [{acc = f32, dst = bf16, name = "x", src = bf16}], scope = "local", src = "staging", wait = [2]} : () -> ()
  }) {direction = "combine", shuffle = @moe, sym_name = "moe_combine"} : () -> ()
}
