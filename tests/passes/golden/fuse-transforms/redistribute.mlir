// before
module {
  "fsc.def_extent"() {sym_name = "spec.rank"} : () -> ()
  "fsc.def_extent"() {sym_name = "spec.ranks"} : () -> ()
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<1024xf32>}], sym_name = "spec.row"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<1024xf32>}], sym_name = "spec.block"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<1024xf32>}], sym_name = "spec.cyclic"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %c8192_i64 = arith.constant 8192 : i64
    %0 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
    %1 = arith.divsi %c8192_i64, %0 : i64
    "fsc.domain"(%1) {operandSegmentSizes = array<i32: 0, 1>} : (i64) -> ()
  }, {
  ^bb0(%arg0: i64):
    %c8192_i64 = arith.constant 8192 : i64
    %0 = "fsc.extent"() {extent = @spec.rank} : () -> i64
    %1 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
    %2 = arith.divsi %c8192_i64, %1 : i64
    %3 = arith.muli %0, %2 : i64
    %4 = arith.addi %3, %arg0 : i64
    %5 = arith.remsi %4, %1 : i64
    %6 = arith.divsi %4, %1 : i64
    "fsc.point"(%arg0, %5, %6) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
  }) {fanout = 1 : i64, indices = ["i"], node = ["cuda", "triton"], num_source_dims = 1 : i64, ragged = 0 : i64, runs = [{cell_elems = 1024 : i64, copy_dtype = i64, dtype = f32, name = "x", run_elems = 1024 : i64, seg_elems = 1024 : i64, unit_bytes = 16 : i64}], segment = @spec.row, source = @spec.block, sym_name = "redistribute", target = @spec.cyclic} : () -> ()
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
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_forward", terms = ["term_slot"]} : () -> ()
    %0 = "fsc.reduce"() {dst = "forward_staging", kind = "copy", list = @reduce_forward, operandSegmentSizes = array<i32: 0>, rows = [{dst = f32, name = "x", src = f32}], signal = 3 : i64, src = "rows"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_direct", terms = ["term_slot"]} : () -> ()
    %1 = "fsc.reduce"() {dst = "staging", kind = "copy", list = @reduce_direct, operandSegmentSizes = array<i32: 0>, rows = [{dst = f32, name = "x", src = f32}], signal = 2 : i64, src = "rows"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "forwarder", columns = ["term_begin", "term_end", "dst_row"], sym_name = "reduce_node"} : () -> ()
    %2 = "fsc.reduce"(%0) {dst = "return_slices", kind = "copy", list = @reduce_node, operandSegmentSizes = array<i32: 1>, rows = [{dst = f32, name = "x", src = f32}], src = "forward_staging", wait = [3]} : (!fsc.token) -> !fsc.token
    %3 = "fsc.exchange"(%2) {operandSegmentSizes = array<i32: 1>} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "source", columns = ["dst_offset", "term_begin", "term_end"], sym_name = "reduce_source", terms = ["term_row"]} : () -> ()
    %4 = "fsc.reduce"(%1, %3) {dst = "result", kind = "copy", list = @reduce_source, operandSegmentSizes = array<i32: 2>, rows = [{dst = f32, name = "x", src = f32}], src = "staging", wait = [2]} : (!fsc.token, !fsc.token) -> !fsc.token
  }) {direction = "combine"} : () -> ()
}

// after
module {
  "fsc.def_extent"() {sym_name = "spec.rank"} : () -> ()
  "fsc.def_extent"() {sym_name = "spec.ranks"} : () -> ()
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<1024xf32>}], sym_name = "spec.row"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<1024xf32>}], sym_name = "spec.block"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<1024xf32>}], sym_name = "spec.cyclic"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %c8192_i64 = arith.constant 8192 : i64
    %0 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
    %1 = arith.divsi %c8192_i64, %0 : i64
    "fsc.domain"(%1) {operandSegmentSizes = array<i32: 0, 1>} : (i64) -> ()
  }, {
  ^bb0(%arg0: i64):
    %c8192_i64 = arith.constant 8192 : i64
    %0 = "fsc.extent"() {extent = @spec.rank} : () -> i64
    %1 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
    %2 = arith.divsi %c8192_i64, %1 : i64
    %3 = arith.muli %0, %2 : i64
    %4 = arith.addi %3, %arg0 : i64
    %5 = arith.remsi %4, %1 : i64
    %6 = arith.divsi %4, %1 : i64
    "fsc.point"(%arg0, %5, %6) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
  }) {fanout = 1 : i64, indices = ["i"], node = ["cuda", "triton"], num_source_dims = 1 : i64, ragged = 0 : i64, runs = [{cell_elems = 1024 : i64, copy_dtype = i64, dtype = f32, name = "x", run_elems = 1024 : i64, seg_elems = 1024 : i64, unit_bytes = 16 : i64}], segment = @spec.row, source = @spec.block, sym_name = "redistribute", target = @spec.cyclic} : () -> ()
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
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_forward", terms = ["term_slot"]} : () -> ()
    %0 = "fsc.reduce"() {dst = "forward_staging", kind = "copy", list = @reduce_forward, operandSegmentSizes = array<i32: 0>, rows = [{dst = f32, name = "x", src = f32}], signal = 3 : i64, src = "rows"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_direct", terms = ["term_slot"]} : () -> ()
    %1 = "fsc.reduce"() {dst = "staging", kind = "copy", list = @reduce_direct, operandSegmentSizes = array<i32: 0>, rows = [{dst = f32, name = "x", src = f32}], signal = 2 : i64, src = "rows"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "forwarder", columns = ["term_begin", "term_end", "dst_row"], sym_name = "reduce_node"} : () -> ()
    %2 = "fsc.reduce"(%0) {dst = "return_slices", kind = "copy", list = @reduce_node, operandSegmentSizes = array<i32: 1>, rows = [{dst = f32, name = "x", src = f32}], src = "forward_staging", wait = [3]} : (!fsc.token) -> !fsc.token
    %3 = "fsc.exchange"(%2) {operandSegmentSizes = array<i32: 1>} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "source", columns = ["dst_offset", "term_begin", "term_end"], sym_name = "reduce_source", terms = ["term_row"]} : () -> ()
    %4 = "fsc.reduce"(%1, %3) {dst = "result", kind = "copy", list = @reduce_source, operandSegmentSizes = array<i32: 2>, rows = [{dst = f32, name = "x", src = f32}], src = "staging", wait = [2]} : (!fsc.token, !fsc.token) -> !fsc.token
  }) {direction = "combine"} : () -> ()
}
