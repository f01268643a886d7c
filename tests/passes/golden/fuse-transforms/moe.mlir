// before
module {
  "fsc.def_extent"() {sym_name = "spec.tokens"} : () -> ()
  "fsc.def_input"() {role = "route", sym_name = "spec.topk_idx", type = tensor<?x8xi64>} : () -> ()
  "fsc.def_input"() {role = "weight", sym_name = "spec.topk_weights", type = tensor<?x8xf32>} : () -> ()
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<7168xbf16>}], sym_name = "spec.token"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<7168xbf16>}], sym_name = "spec.by_token"} : () -> ()
  "fsc.def_placement"() {kind = "block", num_keys = 256 : i64, sym_name = "spec.by_expert.place"} : () -> ()
  "fsc.def_packed"() {align = 128 : i64, compact = 0 : i64, padding = "fewest", placement = @spec.by_expert.place, segment = @spec.token, sym_name = "spec.by_expert"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %c8_i64 = arith.constant 8 : i64
    %0 = "fsc.extent"() {extent = @spec.tokens} : () -> i64
    "fsc.domain"(%0, %c8_i64) {operandSegmentSizes = array<i32: 0, 2>} : (i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64, %arg1: i64):
    %c8_i64 = arith.constant 8 : i64
    %0 = arith.muli %arg0, %c8_i64 : i64
    %1 = arith.addi %0, %arg1 : i64
    %2 = "fsc.lookup"(%1) {input = @spec.topk_idx} : (i64) -> i64
    %3 = "fsc.owner"(%2) {placement = @spec.by_expert.place} : (i64) -> i64
    "fsc.drop"(%2) : (i64) -> ()
    "fsc.point"(%arg0, %3, %2) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
  }) {fanout = 8 : i64, indices = ["t", "k"], node = ["cuda", "triton"], num_source_dims = 1 : i64, ragged = 0 : i64, runs = [{cell_elems = 7168 : i64, copy_dtype = i64, dtype = bf16, name = "x", run_elems = 7168 : i64, seg_elems = 7168 : i64, unit_bytes = 16 : i64}], segment = @spec.token, source = @spec.by_token, sym_name = "moe", target = @spec.by_expert} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {builder = "source", columns = ["src_offset", "dst_row"], per = "node", sym_name = "net_send"} : () -> ()
    %0 = "fsc.gather_send"() {dst = "slices", list = @net_send, operandSegmentSizes = array<i32: 0>, src = "source"} : () -> !fsc.token
    %1 = "fsc.exchange"(%0) {forwarder = "static", operandSegmentSizes = array<i32: 1>, schedule = "pairwise", slice_bytes = 8388608 : i64} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "source", columns = ["src_offset", "dst_peer", "dst_slot"], per = "rank", sym_name = "direct"} : () -> ()
    %2 = "fsc.gather_send"() {dst = "target", list = @direct, operandSegmentSizes = array<i32: 0>, signal = 0 : i64, src = "source"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "forwarder", columns = ["src_row", "dst_peer", "dst_slot"], per = "rank", sym_name = "forward"} : () -> ()
    %3 = "fsc.gather_send"(%1) {dst = "target", list = @forward, operandSegmentSizes = array<i32: 1>, signal = 1 : i64, src = "landing"} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "target", columns = ["src_slot", "dst_slot"], per = "point", sym_name = "local"} : () -> ()
    %4 = "fsc.scatter_recv"(%2, %3) {list = @local, operandSegmentSizes = array<i32: 2>, wait = [0, 1]} : (!fsc.token, !fsc.token) -> !fsc.token
  }) {direction = "dispatch"} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_forward", terms = ["term_slot", "term_point"]} : () -> ()
    %0 = "fsc.reduce"() {dst = "forward_staging", kind = "sum", list = @reduce_forward, operandSegmentSizes = array<i32: 0>, rows = [{acc = f32, dst = f32, name = "x", src = bf16}], signal = 3 : i64, src = "rows", weight = @spec.topk_weights} : () -> !fsc.token
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_direct", terms = ["term_slot", "term_point"]} : () -> ()
    %1 = "fsc.reduce"() {dst = "staging", kind = "sum", list = @reduce_direct, operandSegmentSizes = array<i32: 0>, rows = [{acc = f32, dst = bf16, name = "x", src = bf16}], signal = 2 : i64, src = "rows", weight = @spec.topk_weights} : () -> !fsc.token
    "fsc.descriptors"() {builder = "forwarder", columns = ["term_begin", "term_end", "dst_row"], sym_name = "reduce_node"} : () -> ()
    %2 = "fsc.reduce"(%0) {dst = "return_slices", kind = "sum", list = @reduce_node, operandSegmentSizes = array<i32: 1>, rows = [{acc = f32, dst = bf16, name = "x", src = f32}], src = "forward_staging", wait = [3]} : (!fsc.token) -> !fsc.token
    %3 = "fsc.exchange"(%2) {operandSegmentSizes = array<i32: 1>} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "source", columns = ["dst_offset", "term_begin", "term_end"], sym_name = "reduce_source", terms = ["term_row"]} : () -> ()
    %4 = "fsc.reduce"(%1, %3) {dst = "result", kind = "sum", list = @reduce_source, operandSegmentSizes = array<i32: 2>, rows = [{acc = f32, dst = bf16, name = "x", src = bf16}], src = "staging", wait = [2]} : (!fsc.token, !fsc.token) -> !fsc.token
  }) {direction = "combine"} : () -> ()
}

// after
module {
  "fsc.def_extent"() {sym_name = "spec.tokens"} : () -> ()
  "fsc.def_input"() {role = "route", sym_name = "spec.topk_idx", type = tensor<?x8xi64>} : () -> ()
  "fsc.def_input"() {role = "weight", sym_name = "spec.topk_weights", type = tensor<?x8xf32>} : () -> ()
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<7168xbf16>}], sym_name = "spec.token"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<7168xbf16>}], sym_name = "spec.by_token"} : () -> ()
  "fsc.def_placement"() {kind = "block", num_keys = 256 : i64, sym_name = "spec.by_expert.place"} : () -> ()
  "fsc.def_packed"() {align = 128 : i64, compact = 0 : i64, padding = "fewest", placement = @spec.by_expert.place, segment = @spec.token, sym_name = "spec.by_expert"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %c8_i64 = arith.constant 8 : i64
    %0 = "fsc.extent"() {extent = @spec.tokens} : () -> i64
    "fsc.domain"(%0, %c8_i64) {operandSegmentSizes = array<i32: 0, 2>} : (i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64, %arg1: i64):
    %c8_i64 = arith.constant 8 : i64
    %0 = arith.muli %arg0, %c8_i64 : i64
    %1 = arith.addi %0, %arg1 : i64
    %2 = "fsc.lookup"(%1) {input = @spec.topk_idx} : (i64) -> i64
    %3 = "fsc.owner"(%2) {placement = @spec.by_expert.place} : (i64) -> i64
    "fsc.drop"(%2) : (i64) -> ()
    "fsc.point"(%arg0, %3, %2) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
  }) {fanout = 8 : i64, indices = ["t", "k"], node = ["cuda", "triton"], num_source_dims = 1 : i64, ragged = 0 : i64, runs = [{cell_elems = 7168 : i64, copy_dtype = i64, dtype = bf16, name = "x", run_elems = 7168 : i64, seg_elems = 7168 : i64, unit_bytes = 16 : i64}], segment = @spec.token, source = @spec.by_token, sym_name = "moe", target = @spec.by_expert} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {builder = "source", columns = ["src_offset", "dst_row"], per = "node", sym_name = "net_send"} : () -> ()
    %0 = "fsc.gather_send"() {dst = "slices", list = @net_send, operandSegmentSizes = array<i32: 0>, src = "source"} : () -> !fsc.token
    %1 = "fsc.exchange"(%0) {forwarder = "static", operandSegmentSizes = array<i32: 1>, schedule = "pairwise", slice_bytes = 8388608 : i64} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "source", columns = ["src_offset", "dst_peer", "dst_slot"], per = "rank", sym_name = "direct"} : () -> ()
    %2 = "fsc.gather_send"() {dst = "target", list = @direct, operandSegmentSizes = array<i32: 0>, signal = 0 : i64, src = "source"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "forwarder", columns = ["src_row", "dst_peer", "dst_slot"], per = "rank", sym_name = "forward"} : () -> ()
    %3 = "fsc.gather_send"(%1) {dst = "target", list = @forward, operandSegmentSizes = array<i32: 1>, signal = 1 : i64, src = "landing"} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "target", columns = ["src_slot", "dst_slot"], per = "point", sym_name = "local"} : () -> ()
    %4 = "fsc.scatter_recv"(%2, %3) {list = @local, operandSegmentSizes = array<i32: 2>, wait = [0, 1]} : (!fsc.token, !fsc.token) -> !fsc.token
  }) {direction = "dispatch"} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_forward", terms = ["term_slot", "term_point"]} : () -> ()
    %0 = "fsc.reduce"() {dst = "forward_staging", kind = "sum", list = @reduce_forward, operandSegmentSizes = array<i32: 0>, rows = [{acc = f32, dst = f32, name = "x", src = bf16}], signal = 3 : i64, src = "rows", weight = @spec.topk_weights} : () -> !fsc.token
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_direct", terms = ["term_slot", "term_point"]} : () -> ()
    %1 = "fsc.reduce"() {dst = "staging", kind = "sum", list = @reduce_direct, operandSegmentSizes = array<i32: 0>, rows = [{acc = f32, dst = bf16, name = "x", src = bf16}], signal = 2 : i64, src = "rows", weight = @spec.topk_weights} : () -> !fsc.token
    "fsc.descriptors"() {builder = "forwarder", columns = ["term_begin", "term_end", "dst_row"], sym_name = "reduce_node"} : () -> ()
    %2 = "fsc.reduce"(%0) {dst = "return_slices", kind = "sum", list = @reduce_node, operandSegmentSizes = array<i32: 1>, rows = [{acc = f32, dst = bf16, name = "x", src = f32}], src = "forward_staging", wait = [3]} : (!fsc.token) -> !fsc.token
    %3 = "fsc.exchange"(%2) {operandSegmentSizes = array<i32: 1>} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "source", columns = ["dst_offset", "term_begin", "term_end"], sym_name = "reduce_source", terms = ["term_row"]} : () -> ()
    %4 = "fsc.reduce"(%1, %3) {dst = "result", kind = "sum", list = @reduce_source, operandSegmentSizes = array<i32: 2>, rows = [{acc = f32, dst = bf16, name = "x", src = bf16}], src = "staging", wait = [2]} : (!fsc.token, !fsc.token) -> !fsc.token
  }) {direction = "combine"} : () -> ()
}
