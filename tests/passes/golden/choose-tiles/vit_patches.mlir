// before
module {
  "fsc.def_extent"() {sym_name = "spec.images"} : () -> ()
  "fsc.def_extent"() {sym_name = "spec.length"} : () -> ()
  "fsc.def_input"() {role = "extent", sym_name = "spec.height", type = tensor<?xi64>} : () -> ()
  "fsc.def_input"() {role = "extent", sym_name = "spec.width", type = tensor<?xi64>} : () -> ()
  "fsc.def_input"() {role = "route", sym_name = "spec.packing", type = tensor<?x2xi64>} : () -> ()
  "fsc.def_segment"() {fields = [{name = "pixels", type = tensor<14x14x3xui8>}], sym_name = "spec.patch"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "pixels", type = tensor<3xui8>}], sym_name = "spec.pictures"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "pixels", type = tensor<14x14x3xui8>}], sym_name = "spec.sequence"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %c14_i64 = arith.constant 14 : i64
    %0 = "fsc.extent"() {extent = @spec.images} : () -> i64
    %1 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64
    %2 = "fsc.exact_div"(%1, %c14_i64) : (i64, i64) -> i64
    %3 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
    %4 = "fsc.exact_div"(%3, %c14_i64) : (i64, i64) -> i64
    %5 = arith.muli %1, %3 : i64
    "fsc.domain"(%5, %0, %2, %4) {operandSegmentSizes = array<i32: 1, 3>} : (i64, i64, i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64, %arg1: i64, %arg2: i64):
    %c1_i64 = arith.constant 1 : i64
    %c2_i64 = arith.constant 2 : i64
    %c14_i64 = arith.constant 14 : i64
    %0 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
    %1 = arith.muli %arg1, %c14_i64 : i64
    %2 = arith.muli %arg2, %c14_i64 : i64
    %3 = arith.muli %arg0, %c2_i64 : i64
    %4 = "fsc.lookup"(%3) {input = @spec.packing} : (i64) -> i64
    %5 = arith.addi %3, %c1_i64 : i64
    %6 = "fsc.lookup"(%5) {input = @spec.packing} : (i64) -> i64
    %7 = arith.muli %arg1, %0 : i64
    %8 = arith.divsi %7, %c14_i64 : i64
    %9 = arith.addi %6, %8 : i64
    %10 = arith.addi %9, %arg2 : i64
    "fsc.drop"(%4) : (i64) -> ()
    "fsc.drop"(%6) : (i64) -> ()
    %11 = "fsc.cell_base"(%arg0) : (i64) -> i64
    %12 = arith.muli %1, %0 : i64
    %13 = arith.addi %12, %2 : i64
    %14 = arith.addi %11, %13 : i64
    "fsc.point"(%14, %4, %10, %0) {operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (i64, i64, i64, i64) -> ()
  }) {fanout = 1 : i64, indices = ["n", "i", "j"], num_source_dims = 3 : i64, ragged = 1 : i64, runs = [{cell_elems = 3 : i64, copy_dtype = i16, dtype = ui8, name = "pixels", run_dims = [{count = 14 : i64, dst_stride = 42 : i64, src_stride = "src_stride0"}], run_elems = 42 : i64, seg_elems = 588 : i64, unit_bytes = 2 : i64}], segment = @spec.patch, source = @spec.pictures, sym_name = "vit_patches", target = @spec.sequence} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {builder = "source", columns = ["src_offset", "src_stride0", "dst_row"], per = "node", sym_name = "net_send"} : () -> ()
    %0 = "fsc.gather_send"() {dst = "slices", list = @net_send, operandSegmentSizes = array<i32: 0>, src = "source"} : () -> !fsc.token
    %1 = "fsc.exchange"(%0) {forwarder = "static", operandSegmentSizes = array<i32: 1>, schedule = "pairwise", slice_bytes = 8388608 : i64} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "source", columns = ["src_offset", "src_stride0", "dst_peer", "dst_slot"], per = "rank", sym_name = "direct"} : () -> ()
    %2 = "fsc.gather_send"() {dst = "target", list = @direct, operandSegmentSizes = array<i32: 0>, signal = 0 : i64, src = "source"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "forwarder", columns = ["src_row", "dst_peer", "dst_slot"], per = "rank", sym_name = "forward"} : () -> ()
    %3 = "fsc.gather_send"(%1) {dst = "target", list = @forward, operandSegmentSizes = array<i32: 1>, signal = 1 : i64, src = "landing"} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "target", columns = ["src_slot", "dst_slot"], per = "point", sym_name = "local"} : () -> ()
    %4 = "fsc.scatter_recv"(%2, %3) {list = @local, operandSegmentSizes = array<i32: 2>, wait = [0, 1]} : (!fsc.token, !fsc.token) -> !fsc.token
  }) {direction = "dispatch"} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_forward", terms = ["term_slot"]} : () -> ()
    %0 = "fsc.reduce"() {dst = "forward_staging", kind = "copy", list = @reduce_forward, operandSegmentSizes = array<i32: 0>, rows = [{dst = ui8, name = "pixels", src = ui8}], signal = 3 : i64, src = "rows"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_direct", terms = ["term_slot"]} : () -> ()
    %1 = "fsc.reduce"() {dst = "staging", kind = "copy", list = @reduce_direct, operandSegmentSizes = array<i32: 0>, rows = [{dst = ui8, name = "pixels", src = ui8}], signal = 2 : i64, src = "rows"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "forwarder", columns = ["term_begin", "term_end", "dst_row"], sym_name = "reduce_node"} : () -> ()
    %2 = "fsc.reduce"(%0) {dst = "return_slices", kind = "copy", list = @reduce_node, operandSegmentSizes = array<i32: 1>, rows = [{dst = ui8, name = "pixels", src = ui8}], src = "forward_staging", wait = [3]} : (!fsc.token) -> !fsc.token
    %3 = "fsc.exchange"(%2) {operandSegmentSizes = array<i32: 1>} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "source", columns = ["dst_offset", "dst_stride0", "term_begin", "term_end"], sym_name = "reduce_source", terms = ["term_row"]} : () -> ()
    %4 = "fsc.reduce"(%1, %3) {dst = "result", kind = "copy", list = @reduce_source, operandSegmentSizes = array<i32: 2>, rows = [{dst = ui8, name = "pixels", src = ui8}], src = "staging", wait = [2]} : (!fsc.token, !fsc.token) -> !fsc.token
  }) {direction = "combine"} : () -> ()
  "fsc.node"() ({
    %0 = "fsc.node_points"() ({
    ^bb0(%arg0: i64):
      %c14_i64 = arith.constant 14 : i64
      %11 = "fsc.extent"() {extent = @spec.images} : () -> i64
      %12 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64
      %13 = "fsc.exact_div"(%12, %c14_i64) : (i64, i64) -> i64
      %14 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
      %15 = "fsc.exact_div"(%14, %c14_i64) : (i64, i64) -> i64
      %16 = arith.muli %12, %14 : i64
      "fsc.domain"(%16, %11, %13, %15) {operandSegmentSizes = array<i32: 1, 3>} : (i64, i64, i64, i64) -> ()
    }, {
    ^bb0(%arg0: i64, %arg1: i64, %arg2: i64):
      %c1_i64 = arith.constant 1 : i64
      %c2_i64 = arith.constant 2 : i64
      %c14_i64 = arith.constant 14 : i64
      %11 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
      %12 = arith.muli %arg1, %c14_i64 : i64
      %13 = arith.muli %arg2, %c14_i64 : i64
      %14 = arith.muli %arg0, %c2_i64 : i64
      %15 = "fsc.lookup"(%14) {input = @spec.packing} : (i64) -> i64
      %16 = arith.addi %14, %c1_i64 : i64
      %17 = "fsc.lookup"(%16) {input = @spec.packing} : (i64) -> i64
      %18 = arith.muli %arg1, %11 : i64
      %19 = arith.divsi %18, %c14_i64 : i64
      %20 = arith.addi %17, %19 : i64
      %21 = arith.addi %20, %arg2 : i64
      "fsc.drop"(%15) : (i64) -> ()
      "fsc.drop"(%17) : (i64) -> ()
      %22 = "fsc.cell_base"(%arg0) : (i64) -> i64
      %23 = arith.muli %12, %11 : i64
      %24 = arith.addi %23, %13 : i64
      %25 = arith.addi %22, %24 : i64
      "fsc.point"(%25, %15, %21, %11) {operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (i64, i64, i64, i64) -> ()
    }) {fanout = 1 : i64, indices = ["n", "i", "j"], num_source_dims = 3 : i64, ragged = 1 : i64} : () -> !fsc.points
    %1 = "fsc.node_exchange"() {operandSegmentSizes = array<i32: 0>} : () -> !fsc.counts
    %2 = "fsc.node_pieces"(%0, %1) ({
    ^bb0(%arg0: i64):
      %c2_i64 = arith.constant 2 : i64
      %11 = arith.muli %arg0, %c2_i64 : i64
      %12 = "fsc.lookup"(%11) {input = @spec.packing} : (i64) -> i64
      "fsc.drop"(%12) : (i64) -> ()
      %c1_i64 = arith.constant 1 : i64
      %13 = arith.addi %11, %c1_i64 : i64
      %14 = "fsc.lookup"(%13) {input = @spec.packing} : (i64) -> i64
      "fsc.drop"(%14) : (i64) -> ()
      %15 = "fsc.cell_base"(%arg0) : (i64) -> i64
      %16 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64
      %c14_i64 = arith.constant 14 : i64
      %17 = "fsc.exact_div"(%16, %c14_i64) : (i64, i64) -> i64
      %18 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
      %19 = "fsc.exact_div"(%18, %c14_i64) : (i64, i64) -> i64
      %c196_i64 = arith.constant 196 : i64
      %20 = arith.muli %c196_i64, %19 : i64
      %c0_i64 = arith.constant 0 : i64
      "fsc.piece"(%15, %12, %14, %17, %19, %20, %c14_i64, %c0_i64, %c0_i64, %19, %c1_i64, %18) {operandSegmentSizes = array<i32: 1, 1, 1, 2, 2, 2, 2, 1>} : (i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64) -> ()
    }) {disjoint = 1 : i64, outer = [0]} : (!fsc.points, !fsc.counts) -> !fsc.slots
    %3 = "fsc.node_copy"(%2) ({
      %11 = "fsc.load_field"() {cell_elems = 3 : i64, copy_dtype = i16, dtype = ui8, field = "pixels", run_dims = [{count = 14 : i64, dst_stride = 42 : i64, src_stride = "src_stride0"}], run_elems = 42 : i64, seg_elems = 588 : i64, unit_bytes = 2 : i64} : () -> vector<588xui8>
      "fsc.store_field"(%11) {field = "pixels"} : (vector<588xui8>) -> ()
    }) : (!fsc.slots) -> !fsc.token
    %4 = "fsc.node_signal"(%3) {per = "group"} : (!fsc.token) -> !fsc.token
    %5 = "fsc.node_wait"(%4) {per = "group"} : (!fsc.token) -> !fsc.token
    %6 = "fsc.node_expand"(%5) : (!fsc.token) -> !fsc.token
    %7 = "fsc.node_reduce"(%2) ({
    ^bb0(%arg0: vector<588xui8>):
      "fsc.made"(%arg0) {field = "pixels"} : (vector<588xui8>) -> ()
    }) : (!fsc.slots) -> !fsc.token
    %8 = "fsc.node_signal"(%7) {per = "group"} : (!fsc.token) -> !fsc.token
    %9 = "fsc.node_wait"(%8) {per = "group"} : (!fsc.token) -> !fsc.token
    %10 = "fsc.node_join"(%9) : (!fsc.token) -> !fsc.token
  }) {printers = ["cuda", "triton"]} : () -> ()
}

// after
module {
  "fsc.def_extent"() {sym_name = "spec.images"} : () -> ()
  "fsc.def_extent"() {sym_name = "spec.length"} : () -> ()
  "fsc.def_input"() {role = "extent", sym_name = "spec.height", type = tensor<?xi64>} : () -> ()
  "fsc.def_input"() {role = "extent", sym_name = "spec.width", type = tensor<?xi64>} : () -> ()
  "fsc.def_input"() {role = "route", sym_name = "spec.packing", type = tensor<?x2xi64>} : () -> ()
  "fsc.def_segment"() {fields = [{name = "pixels", type = tensor<14x14x3xui8>}], sym_name = "spec.patch"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "pixels", type = tensor<3xui8>}], sym_name = "spec.pictures"} : () -> ()
  "fsc.def_layout"() {cells = [{name = "pixels", type = tensor<14x14x3xui8>}], sym_name = "spec.sequence"} : () -> ()
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64):
    %c14_i64 = arith.constant 14 : i64
    %0 = "fsc.extent"() {extent = @spec.images} : () -> i64
    %1 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64
    %2 = "fsc.exact_div"(%1, %c14_i64) : (i64, i64) -> i64
    %3 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
    %4 = "fsc.exact_div"(%3, %c14_i64) : (i64, i64) -> i64
    %5 = arith.muli %1, %3 : i64
    "fsc.domain"(%5, %0, %2, %4) {operandSegmentSizes = array<i32: 1, 3>} : (i64, i64, i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64, %arg1: i64, %arg2: i64):
    %c1_i64 = arith.constant 1 : i64
    %c2_i64 = arith.constant 2 : i64
    %c14_i64 = arith.constant 14 : i64
    %0 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
    %1 = arith.muli %arg1, %c14_i64 : i64
    %2 = arith.muli %arg2, %c14_i64 : i64
    %3 = arith.muli %arg0, %c2_i64 : i64
    %4 = "fsc.lookup"(%3) {input = @spec.packing} : (i64) -> i64
    %5 = arith.addi %3, %c1_i64 : i64
    %6 = "fsc.lookup"(%5) {input = @spec.packing} : (i64) -> i64
    %7 = arith.muli %arg1, %0 : i64
    %8 = arith.divsi %7, %c14_i64 : i64
    %9 = arith.addi %6, %8 : i64
    %10 = arith.addi %9, %arg2 : i64
    "fsc.drop"(%4) : (i64) -> ()
    "fsc.drop"(%6) : (i64) -> ()
    %11 = "fsc.cell_base"(%arg0) : (i64) -> i64
    %12 = arith.muli %1, %0 : i64
    %13 = arith.addi %12, %2 : i64
    %14 = arith.addi %11, %13 : i64
    "fsc.point"(%14, %4, %10, %0) {operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (i64, i64, i64, i64) -> ()
  }) {fanout = 1 : i64, indices = ["n", "i", "j"], num_source_dims = 3 : i64, ragged = 1 : i64, runs = [{cell_elems = 3 : i64, copy_dtype = i16, dtype = ui8, name = "pixels", run_dims = [{count = 14 : i64, dst_stride = 42 : i64, src_stride = "src_stride0"}], run_elems = 42 : i64, seg_elems = 588 : i64, unit_bytes = 2 : i64}], segment = @spec.patch, source = @spec.pictures, sym_name = "vit_patches", target = @spec.sequence} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {builder = "source", columns = ["src_offset", "src_stride0", "dst_row"], per = "node", sym_name = "net_send"} : () -> ()
    %0 = "fsc.gather_send"() {dst = "slices", list = @net_send, operandSegmentSizes = array<i32: 0>, src = "source"} : () -> !fsc.token
    %1 = "fsc.exchange"(%0) {forwarder = "static", operandSegmentSizes = array<i32: 1>, schedule = "pairwise", slice_bytes = 8388608 : i64} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "source", columns = ["src_offset", "src_stride0", "dst_peer", "dst_slot"], per = "rank", sym_name = "direct"} : () -> ()
    %2 = "fsc.gather_send"() {dst = "target", list = @direct, operandSegmentSizes = array<i32: 0>, signal = 0 : i64, src = "source"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "forwarder", columns = ["src_row", "dst_peer", "dst_slot"], per = "rank", sym_name = "forward"} : () -> ()
    %3 = "fsc.gather_send"(%1) {dst = "target", list = @forward, operandSegmentSizes = array<i32: 1>, signal = 1 : i64, src = "landing"} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "target", columns = ["src_slot", "dst_slot"], per = "point", sym_name = "local"} : () -> ()
    %4 = "fsc.scatter_recv"(%2, %3) {list = @local, operandSegmentSizes = array<i32: 2>, wait = [0, 1]} : (!fsc.token, !fsc.token) -> !fsc.token
  }) {direction = "dispatch"} : () -> ()
  "fsc.path"() ({
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_forward", terms = ["term_slot"]} : () -> ()
    %0 = "fsc.reduce"() {dst = "forward_staging", kind = "copy", list = @reduce_forward, operandSegmentSizes = array<i32: 0>, rows = [{dst = ui8, name = "pixels", src = ui8}], signal = 3 : i64, src = "rows"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "target", columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_direct", terms = ["term_slot"]} : () -> ()
    %1 = "fsc.reduce"() {dst = "staging", kind = "copy", list = @reduce_direct, operandSegmentSizes = array<i32: 0>, rows = [{dst = ui8, name = "pixels", src = ui8}], signal = 2 : i64, src = "rows"} : () -> !fsc.token
    "fsc.descriptors"() {builder = "forwarder", columns = ["term_begin", "term_end", "dst_row"], sym_name = "reduce_node"} : () -> ()
    %2 = "fsc.reduce"(%0) {dst = "return_slices", kind = "copy", list = @reduce_node, operandSegmentSizes = array<i32: 1>, rows = [{dst = ui8, name = "pixels", src = ui8}], src = "forward_staging", wait = [3]} : (!fsc.token) -> !fsc.token
    %3 = "fsc.exchange"(%2) {operandSegmentSizes = array<i32: 1>} : (!fsc.token) -> !fsc.token
    "fsc.descriptors"() {builder = "source", columns = ["dst_offset", "dst_stride0", "term_begin", "term_end"], sym_name = "reduce_source", terms = ["term_row"]} : () -> ()
    %4 = "fsc.reduce"(%1, %3) {dst = "result", kind = "copy", list = @reduce_source, operandSegmentSizes = array<i32: 2>, rows = [{dst = ui8, name = "pixels", src = ui8}], src = "staging", wait = [2]} : (!fsc.token, !fsc.token) -> !fsc.token
  }) {direction = "combine"} : () -> ()
  "fsc.node"() ({
    %0 = "fsc.node_points"() ({
    ^bb0(%arg0: i64):
      %c14_i64 = arith.constant 14 : i64
      %11 = "fsc.extent"() {extent = @spec.images} : () -> i64
      %12 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64
      %13 = "fsc.exact_div"(%12, %c14_i64) : (i64, i64) -> i64
      %14 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
      %15 = "fsc.exact_div"(%14, %c14_i64) : (i64, i64) -> i64
      %16 = arith.muli %12, %14 : i64
      "fsc.domain"(%16, %11, %13, %15) {operandSegmentSizes = array<i32: 1, 3>} : (i64, i64, i64, i64) -> ()
    }, {
    ^bb0(%arg0: i64, %arg1: i64, %arg2: i64):
      %c1_i64 = arith.constant 1 : i64
      %c2_i64 = arith.constant 2 : i64
      %c14_i64 = arith.constant 14 : i64
      %11 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
      %12 = arith.muli %arg1, %c14_i64 : i64
      %13 = arith.muli %arg2, %c14_i64 : i64
      %14 = arith.muli %arg0, %c2_i64 : i64
      %15 = "fsc.lookup"(%14) {input = @spec.packing} : (i64) -> i64
      %16 = arith.addi %14, %c1_i64 : i64
      %17 = "fsc.lookup"(%16) {input = @spec.packing} : (i64) -> i64
      %18 = arith.muli %arg1, %11 : i64
      %19 = arith.divsi %18, %c14_i64 : i64
      %20 = arith.addi %17, %19 : i64
      %21 = arith.addi %20, %arg2 : i64
      "fsc.drop"(%15) : (i64) -> ()
      "fsc.drop"(%17) : (i64) -> ()
      %22 = "fsc.cell_base"(%arg0) : (i64) -> i64
      %23 = arith.muli %12, %11 : i64
      %24 = arith.addi %23, %13 : i64
      %25 = arith.addi %22, %24 : i64
      "fsc.point"(%25, %15, %21, %11) {operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (i64, i64, i64, i64) -> ()
    }) {fanout = 1 : i64, indices = ["n", "i", "j"], num_source_dims = 3 : i64, ragged = 1 : i64} : () -> !fsc.points
    %1 = "fsc.node_exchange"() {operandSegmentSizes = array<i32: 0>} : () -> !fsc.counts
    %2 = "fsc.node_pieces"(%0, %1) ({
    ^bb0(%arg0: i64):
      %c2_i64 = arith.constant 2 : i64
      %11 = arith.muli %arg0, %c2_i64 : i64
      %12 = "fsc.lookup"(%11) {input = @spec.packing} : (i64) -> i64
      "fsc.drop"(%12) : (i64) -> ()
      %c1_i64 = arith.constant 1 : i64
      %13 = arith.addi %11, %c1_i64 : i64
      %14 = "fsc.lookup"(%13) {input = @spec.packing} : (i64) -> i64
      "fsc.drop"(%14) : (i64) -> ()
      %15 = "fsc.cell_base"(%arg0) : (i64) -> i64
      %16 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64
      %c14_i64 = arith.constant 14 : i64
      %17 = "fsc.exact_div"(%16, %c14_i64) : (i64, i64) -> i64
      %18 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
      %19 = "fsc.exact_div"(%18, %c14_i64) : (i64, i64) -> i64
      %c196_i64 = arith.constant 196 : i64
      %20 = arith.muli %c196_i64, %19 : i64
      %c0_i64 = arith.constant 0 : i64
      "fsc.piece"(%15, %12, %14, %17, %19, %20, %c14_i64, %c0_i64, %c0_i64, %19, %c1_i64, %18) {operandSegmentSizes = array<i32: 1, 1, 1, 2, 2, 2, 2, 1>} : (i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64) -> ()
    }) {disjoint = 1 : i64, outer = [0]} : (!fsc.points, !fsc.counts) -> !fsc.slots
    %3 = "fsc.node_copy"(%2) ({
      %11 = "fsc.load_field"() {cell_elems = 3 : i64, copy_dtype = i16, dtype = ui8, field = "pixels", run_dims = [{count = 14 : i64, dst_stride = 42 : i64, src_stride = "src_stride0"}], run_elems = 42 : i64, seg_elems = 588 : i64, unit_bytes = 2 : i64} : () -> vector<588xui8>
      "fsc.store_field"(%11) {field = "pixels"} : (vector<588xui8>) -> ()
    }) : (!fsc.slots) -> !fsc.token
    %4 = "fsc.node_signal"(%3) {per = "group"} : (!fsc.token) -> !fsc.token
    %5 = "fsc.node_wait"(%4) {per = "group"} : (!fsc.token) -> !fsc.token
    %6 = "fsc.node_expand"(%5) : (!fsc.token) -> !fsc.token
    %7 = "fsc.node_reduce"(%2) ({
    ^bb0(%arg0: vector<588xui8>):
      "fsc.made"(%arg0) {field = "pixels"} : (vector<588xui8>) -> ()
    }) : (!fsc.slots) -> !fsc.token
    %8 = "fsc.node_signal"(%7) {per = "group"} : (!fsc.token) -> !fsc.token
    %9 = "fsc.node_wait"(%8) {per = "group"} : (!fsc.token) -> !fsc.token
    %10 = "fsc.node_join"(%9) : (!fsc.token) -> !fsc.token
    "fsc.cuda_piece_tile"() {arch = "sm_90", combine_warps = 28 : i64, dispatch_warps = 28 : i64, tile_bytes = 43648 : i64, words = [{field = "pixels", word_bytes = 2 : i64}]} : () -> ()
    "fsc.cuda_piece_tile"() {arch = "sm_80", combine_warps = 28 : i64, dispatch_warps = 28 : i64, tile_bytes = 30464 : i64, words = [{field = "pixels", word_bytes = 2 : i64}]} : () -> ()
    "fsc.triton_piece_tile"() {copy_warps = 4 : i64, fields = [{few_lines = 512 : i64, field = "pixels", lines = 256 : i64, word_bytes = 2 : i64}], item_lines = 1024 : i64, plan_warps = 1 : i64} : () -> ()
    "fsc.triton_tile"() {moved = [{align_bytes = 2 : i64, field = "pixels", part_elems = 294 : i64, pieces = [512]}], plan_block = 1 : i64, plan_keys = 1 : i64, plan_points = 128 : i64, plan_tiles = 1 : i64, plan_warps = 4 : i64, row_parts = 1 : i64, row_warps = 1 : i64, sorted_rows = 1 : i64, tile_rows = 1 : i64} : () -> ()
  }) : () -> ()
}
