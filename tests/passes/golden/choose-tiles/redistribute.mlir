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
  }) {fanout = 1 : i64, indices = ["i"], num_source_dims = 1 : i64, ragged = 0 : i64, runs = [{cell_elems = 1024 : i64, copy_dtype = i64, dtype = f32, name = "x", run_elems = 1024 : i64, seg_elems = 1024 : i64, unit_bytes = 16 : i64}], segment = @spec.row, source = @spec.block, sym_name = "redistribute", target = @spec.cyclic} : () -> ()
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
  "fsc.node"() ({
    %0 = "fsc.node_points"() ({
    ^bb0(%arg0: i64):
      %c8192_i64 = arith.constant 8192 : i64
      %11 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
      %12 = arith.divsi %c8192_i64, %11 : i64
      "fsc.domain"(%12) {operandSegmentSizes = array<i32: 0, 1>} : (i64) -> ()
    }, {
    ^bb0(%arg0: i64):
      %c8192_i64 = arith.constant 8192 : i64
      %11 = "fsc.extent"() {extent = @spec.rank} : () -> i64
      %12 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
      %13 = arith.divsi %c8192_i64, %12 : i64
      %14 = arith.muli %11, %13 : i64
      %15 = arith.addi %14, %arg0 : i64
      %16 = arith.remsi %15, %12 : i64
      %17 = arith.divsi %15, %12 : i64
      "fsc.point"(%arg0, %16, %17) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
    }) {fanout = 1 : i64, indices = ["i"], num_source_dims = 1 : i64, ragged = 0 : i64} : () -> !fsc.points
    %1 = "fsc.node_exchange"() {operandSegmentSizes = array<i32: 0>} : () -> !fsc.counts
    %2 = "fsc.node_pieces"(%0, %1) ({
      %c0_i64 = arith.constant 0 : i64
      %11 = "fsc.extent"() {extent = @spec.rank} : () -> i64
      %c8192_i64 = arith.constant 8192 : i64
      %12 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
      %13 = arith.floordivsi %c8192_i64, %12 : i64
      %14 = arith.muli %11, %13 : i64
      %15 = arith.floordivsi %14, %12 : i64
      %16 = arith.muli %12, %15 : i64
      %17 = arith.subi %14, %16 : i64
      %18 = arith.addi %12, %16 : i64
      %19 = arith.subi %18, %14 : i64
      %20 = arith.minsi %19, %13 : i64
      %c1_i64 = arith.constant 1 : i64
      %21 = arith.minsi %17, %c1_i64 : i64
      %22 = arith.muli %20, %21 : i64
      "fsc.piece"(%c0_i64, %17, %15, %22, %c1_i64, %c1_i64, %c0_i64) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 0>} : (i64, i64, i64, i64, i64, i64, i64) -> ()
      %23 = arith.muli %12, %21 : i64
      %24 = arith.addi %16, %23 : i64
      %25 = arith.subi %24, %14 : i64
      %26 = arith.addi %15, %21 : i64
      %27 = arith.addi %14, %13 : i64
      %28 = arith.floordivsi %27, %12 : i64
      %29 = arith.subi %28, %15 : i64
      %30 = arith.subi %29, %21 : i64
      %31 = arith.maxsi %30, %c0_i64 : i64
      "fsc.piece"(%25, %c0_i64, %26, %31, %12, %12, %c1_i64, %c0_i64, %c1_i64, %c1_i64, %c0_i64) {operandSegmentSizes = array<i32: 1, 1, 1, 2, 2, 2, 2, 0>} : (i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64) -> ()
      %32 = arith.muli %12, %28 : i64
      %33 = arith.subi %32, %14 : i64
      %34 = arith.addi %c1_i64, %28 : i64
      %35 = arith.subi %34, %15 : i64
      %36 = arith.subi %35, %21 : i64
      %37 = arith.minsi %c1_i64, %36 : i64
      %38 = arith.muli %14, %37 : i64
      %39 = arith.muli %13, %37 : i64
      %40 = arith.addi %38, %39 : i64
      %41 = arith.muli %32, %37 : i64
      %42 = arith.subi %40, %41 : i64
      "fsc.piece"(%33, %c0_i64, %28, %42, %c1_i64, %c1_i64, %c0_i64) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 0>} : (i64, i64, i64, i64, i64, i64, i64) -> ()
    }) {disjoint = 1 : i64} : (!fsc.points, !fsc.counts) -> !fsc.slots
    %3 = "fsc.node_copy"(%2) ({
      %11 = "fsc.load_field"() {cell_elems = 1024 : i64, copy_dtype = i64, dtype = f32, field = "x", run_elems = 1024 : i64, seg_elems = 1024 : i64, unit_bytes = 16 : i64} : () -> vector<1024xf32>
      "fsc.store_field"(%11) {field = "x"} : (vector<1024xf32>) -> ()
    }) : (!fsc.slots) -> !fsc.token
    %4 = "fsc.node_signal"(%3) {per = "group"} : (!fsc.token) -> !fsc.token
    %5 = "fsc.node_wait"(%4) {per = "group"} : (!fsc.token) -> !fsc.token
    %6 = "fsc.node_expand"(%5) : (!fsc.token) -> !fsc.token
    %7 = "fsc.node_reduce"(%2) ({
    ^bb0(%arg0: vector<1024xf32>):
      "fsc.made"(%arg0) {field = "x"} : (vector<1024xf32>) -> ()
    }) : (!fsc.slots) -> !fsc.token
    %8 = "fsc.node_signal"(%7) {per = "group"} : (!fsc.token) -> !fsc.token
    %9 = "fsc.node_wait"(%8) {per = "group"} : (!fsc.token) -> !fsc.token
    %10 = "fsc.node_join"(%9) : (!fsc.token) -> !fsc.token
  }) {printers = ["cuda", "triton"]} : () -> ()
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
  }) {fanout = 1 : i64, indices = ["i"], num_source_dims = 1 : i64, ragged = 0 : i64, runs = [{cell_elems = 1024 : i64, copy_dtype = i64, dtype = f32, name = "x", run_elems = 1024 : i64, seg_elems = 1024 : i64, unit_bytes = 16 : i64}], segment = @spec.row, source = @spec.block, sym_name = "redistribute", target = @spec.cyclic} : () -> ()
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
  "fsc.node"() ({
    %0 = "fsc.node_points"() ({
    ^bb0(%arg0: i64):
      %c8192_i64 = arith.constant 8192 : i64
      %11 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
      %12 = arith.divsi %c8192_i64, %11 : i64
      "fsc.domain"(%12) {operandSegmentSizes = array<i32: 0, 1>} : (i64) -> ()
    }, {
    ^bb0(%arg0: i64):
      %c8192_i64 = arith.constant 8192 : i64
      %11 = "fsc.extent"() {extent = @spec.rank} : () -> i64
      %12 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
      %13 = arith.divsi %c8192_i64, %12 : i64
      %14 = arith.muli %11, %13 : i64
      %15 = arith.addi %14, %arg0 : i64
      %16 = arith.remsi %15, %12 : i64
      %17 = arith.divsi %15, %12 : i64
      "fsc.point"(%arg0, %16, %17) {operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
    }) {fanout = 1 : i64, indices = ["i"], num_source_dims = 1 : i64, ragged = 0 : i64} : () -> !fsc.points
    %1 = "fsc.node_exchange"() {operandSegmentSizes = array<i32: 0>} : () -> !fsc.counts
    %2 = "fsc.node_pieces"(%0, %1) ({
      %c0_i64 = arith.constant 0 : i64
      %11 = "fsc.extent"() {extent = @spec.rank} : () -> i64
      %c8192_i64 = arith.constant 8192 : i64
      %12 = "fsc.extent"() {extent = @spec.ranks} : () -> i64
      %13 = arith.floordivsi %c8192_i64, %12 : i64
      %14 = arith.muli %11, %13 : i64
      %15 = arith.floordivsi %14, %12 : i64
      %16 = arith.muli %12, %15 : i64
      %17 = arith.subi %14, %16 : i64
      %18 = arith.addi %12, %16 : i64
      %19 = arith.subi %18, %14 : i64
      %20 = arith.minsi %19, %13 : i64
      %c1_i64 = arith.constant 1 : i64
      %21 = arith.minsi %17, %c1_i64 : i64
      %22 = arith.muli %20, %21 : i64
      "fsc.piece"(%c0_i64, %17, %15, %22, %c1_i64, %c1_i64, %c0_i64) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 0>} : (i64, i64, i64, i64, i64, i64, i64) -> ()
      %23 = arith.muli %12, %21 : i64
      %24 = arith.addi %16, %23 : i64
      %25 = arith.subi %24, %14 : i64
      %26 = arith.addi %15, %21 : i64
      %27 = arith.addi %14, %13 : i64
      %28 = arith.floordivsi %27, %12 : i64
      %29 = arith.subi %28, %15 : i64
      %30 = arith.subi %29, %21 : i64
      %31 = arith.maxsi %30, %c0_i64 : i64
      "fsc.piece"(%25, %c0_i64, %26, %31, %12, %12, %c1_i64, %c0_i64, %c1_i64, %c1_i64, %c0_i64) {operandSegmentSizes = array<i32: 1, 1, 1, 2, 2, 2, 2, 0>} : (i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64) -> ()
      %32 = arith.muli %12, %28 : i64
      %33 = arith.subi %32, %14 : i64
      %34 = arith.addi %c1_i64, %28 : i64
      %35 = arith.subi %34, %15 : i64
      %36 = arith.subi %35, %21 : i64
      %37 = arith.minsi %c1_i64, %36 : i64
      %38 = arith.muli %14, %37 : i64
      %39 = arith.muli %13, %37 : i64
      %40 = arith.addi %38, %39 : i64
      %41 = arith.muli %32, %37 : i64
      %42 = arith.subi %40, %41 : i64
      "fsc.piece"(%33, %c0_i64, %28, %42, %c1_i64, %c1_i64, %c0_i64) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 0>} : (i64, i64, i64, i64, i64, i64, i64) -> ()
    }) {disjoint = 1 : i64} : (!fsc.points, !fsc.counts) -> !fsc.slots
    %3 = "fsc.node_copy"(%2) ({
      %11 = "fsc.load_field"() {cell_elems = 1024 : i64, copy_dtype = i64, dtype = f32, field = "x", run_elems = 1024 : i64, seg_elems = 1024 : i64, unit_bytes = 16 : i64} : () -> vector<1024xf32>
      "fsc.store_field"(%11) {field = "x"} : (vector<1024xf32>) -> ()
    }) : (!fsc.slots) -> !fsc.token
    %4 = "fsc.node_signal"(%3) {per = "group"} : (!fsc.token) -> !fsc.token
    %5 = "fsc.node_wait"(%4) {per = "group"} : (!fsc.token) -> !fsc.token
    %6 = "fsc.node_expand"(%5) : (!fsc.token) -> !fsc.token
    %7 = "fsc.node_reduce"(%2) ({
    ^bb0(%arg0: vector<1024xf32>):
      "fsc.made"(%arg0) {field = "x"} : (vector<1024xf32>) -> ()
    }) : (!fsc.slots) -> !fsc.token
    %8 = "fsc.node_signal"(%7) {per = "group"} : (!fsc.token) -> !fsc.token
    %9 = "fsc.node_wait"(%8) {per = "group"} : (!fsc.token) -> !fsc.token
    %10 = "fsc.node_join"(%9) : (!fsc.token) -> !fsc.token
    "fsc.cuda_piece_tile"() {arch = "sm_90", carried_bytes = 124800 : i64, combine_warps = 24 : i64, dispatch_warps = 28 : i64, few_bytes = 124800 : i64, words = [{field = "x", word_bytes = 16 : i64}]} : () -> ()
    "fsc.cuda_piece_tile"() {arch = "sm_80", combine_warps = 24 : i64, dispatch_warps = 28 : i64, words = [{field = "x", word_bytes = 16 : i64}]} : () -> ()
    "fsc.triton_piece_tile"() {copy_warps = 4 : i64, fields = [{few_lines = 1024 : i64, field = "x", lines = 1024 : i64, word_bytes = 16 : i64}], holding_warps = 8 : i64, item_lines = 1024 : i64, plan_warps = 1 : i64} : () -> ()
    "fsc.triton_tile"() {moved = [{align_bytes = 16 : i64, field = "x", part_elems = 512 : i64, pieces = [512]}], plan_block = 1 : i64, plan_keys = 1 : i64, plan_points = 128 : i64, plan_tiles = 1 : i64, plan_warps = 4 : i64, row_parts = 1 : i64, row_warps = 1 : i64, sorted_rows = 1 : i64, tile_rows = 1 : i64} : () -> ()
  }) : () -> ()
}
