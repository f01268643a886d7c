// before
module {
  "fsc.def_extent"() {sym_name = "spec.rank"} : () -> ()
  "fsc.def_extent"() {sym_name = "spec.ranks"} : () -> ()
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<1024xf32>}], sym_name = "spec.row"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<1024xf32>}], num_dims = 1 : i64, sym_name = "spec.block"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<1024xf32>}], num_dims = 1 : i64, sym_name = "spec.cyclic"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %c1_i64 = arith.constant 1 : i64
    %c8192_i64 = arith.constant 8192 : i64
    %0 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
    %1 = arith.divsi %c8192_i64, %0 : i64
    "fsc.domain"(%c1_i64, %1) {operandSegmentSizes = array<i32: 1, 1>} : (i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64):
    %c8192_i64 = arith.constant 8192 : i64
    %0 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
    %1 = arith.divsi %c8192_i64, %0 : i64
    %2 = "fsc.extent"() {extent = @spec.rank} : () -> i64
    %3 = arith.muli %2, %1 : i64
    %4 = arith.addi %3, %arg0 : i64
    %5 = arith.remsi %4, %0 : i64
    %6 = arith.divsi %4, %0 : i64
    "fsc.point"(%arg0, %5, %6) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
  }) {fanout = 1 : i64, indices = ["i"], num_source_dims = 1 : i64, ragged = 0 : i64, runs = [{cell_elems = 1024 : i64, copy_dtype = i64, dtype = f32, name = "x", run_elems = 1024 : i64, seg_elems = 1024 : i64, unit_bytes = 16 : i64}], segment = @spec.row, source = @spec.block, sym_name = "redistribute", target = @spec.cyclic} : () -> ()
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
  }) {direction = "dispatch", shuffle = @redistribute, sym_name = "redistribute_dispatch"} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {columns = ["dst_peer", "dst_row", "term_begin", "term_end"], per = "rank", sym_name = "reduce_forward", terms = ["term_slot"]} : () -> ()
    "fsc.reduce"() {dst = "forward_staging", kind = "copy", list = @reduce_forward, rows = [{dst = f32, name = "x", src = f32}], scope = "rank", signal = 3 : i64, src = "target"} : () -> ()
    "fsc.descriptors"() {columns = ["dst_peer", "dst_row", "term_begin", "term_end"], per = "rank", sym_name = "reduce_direct", terms = ["term_slot"]} : () -> ()
    "fsc.reduce"() {dst = "staging", kind = "copy", list = @reduce_direct, rows = [{dst = f32, name = "x", src = f32}], scope = "rank", signal = 2 : i64, src = "target"} : () -> ()
    "fsc.descriptors"() {columns = ["term_begin", "term_end", "dst_row"], per = "node", sym_name = "reduce_node"} : () -> ()
    "fsc.reduce"() {dst = "slice", kind = "copy", list = @reduce_node, rows = [{dst = f32, name = "x", src = f32}], scope = "node", src = "forward_staging", wait = [3]} : () -> ()
    "fsc.exchange"() {direction = "back", forwarder = "same_local_rank", list = @redistribute_dispatch::@net_send, schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()
    "fsc.descriptors"() {columns = ["dst_offset", "term_begin", "term_end"], per = "source", sym_name = "reduce_source", terms = ["term_row"]} : () -> ()
    "fsc.reduce"() {dst = "source", kind = "copy", list = @reduce_source, rows = [{dst = f32, name = "x", src = f32}], scope = "local", src = "staging", wait = [2]} : () -> ()
  }) {direction = "combine", shuffle = @redistribute, sym_name = "redistribute_combine"} : () -> ()
}

// after
module {
  "fsc.def_extent"() {sym_name = "spec.rank"} : () -> ()
  "fsc.def_extent"() {sym_name = "spec.ranks"} : () -> ()
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<1024xf32>}], sym_name = "spec.row"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<1024xf32>}], num_dims = 1 : i64, sym_name = "spec.block"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<1024xf32>}], num_dims = 1 : i64, sym_name = "spec.cyclic"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %c1_i64 = arith.constant 1 : i64
    %c8192_i64 = arith.constant 8192 : i64
    %0 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
    %1 = arith.divsi %c8192_i64, %0 : i64
    "fsc.domain"(%c1_i64, %1) {operandSegmentSizes = array<i32: 1, 1>} : (i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64):
    %c8192_i64 = arith.constant 8192 : i64
    %0 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
    %1 = arith.divsi %c8192_i64, %0 : i64
    %2 = "fsc.extent"() {extent = @spec.rank} : () -> i64
    %3 = arith.muli %2, %1 : i64
    %4 = arith.addi %3, %arg0 : i64
    %5 = arith.remsi %4, %0 : i64
    %6 = arith.divsi %4, %0 : i64
    "fsc.point"(%arg0, %5, %6) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
  }) {fanout = 1 : i64, indices = ["i"], num_source_dims = 1 : i64, ragged = 0 : i64, runs = [{cell_elems = 1024 : i64, copy_dtype = i64, dtype = f32, name = "x", run_elems = 1024 : i64, seg_elems = 1024 : i64, unit_bytes = 16 : i64}], segment = @spec.row, source = @spec.block, sym_name = "redistribute", target = @spec.cyclic} : () -> ()
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
  }) {direction = "dispatch", shuffle = @redistribute, sym_name = "redistribute_dispatch"} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {columns = ["dst_peer", "dst_row", "term_begin", "term_end"], per = "rank", sym_name = "reduce_forward", terms = ["term_slot"]} : () -> ()
    "fsc.reduce"() {dst = "forward_staging", kind = "copy", list = @reduce_forward, rows = [{dst = f32, name = "x", src = f32}], scope = "rank", signal = 3 : i64, src = "target"} : () -> ()
    "fsc.descriptors"() {columns = ["dst_peer", "dst_row", "term_begin", "term_end"], per = "rank", sym_name = "reduce_direct", terms = ["term_slot"]} : () -> ()
    "fsc.reduce"() {dst = "staging", kind = "copy", list = @reduce_direct, rows = [{dst = f32, name = "x", src = f32}], scope = "rank", signal = 2 : i64, src = "target"} : () -> ()
    "fsc.descriptors"() {columns = ["term_begin", "term_end", "dst_row"], per = "node", sym_name = "reduce_node"} : () -> ()
    "fsc.reduce"() {dst = "slice", kind = "copy", list = @reduce_node, rows = [{dst = f32, name = "x", src = f32}], scope = "node", src = "forward_staging", wait = [3]} : () -> ()
    "fsc.exchange"() {direction = "back", forwarder = "same_local_rank", list = @redistribute_dispatch::@net_send, schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()
    "fsc.descriptors"() {columns = ["dst_offset", "term_begin", "term_end"], per = "source", sym_name = "reduce_source", terms = ["term_row"]} : () -> ()
    "fsc.reduce"() {dst = "source", kind = "copy", list = @reduce_source, rows = [{dst = f32, name = "x", src = f32}], scope = "local", src = "staging", wait = [2]} : () -> ()
  }) {direction = "combine", shuffle = @redistribute, sym_name = "redistribute_combine"} : () -> ()
}
