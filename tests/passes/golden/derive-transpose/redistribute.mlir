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
    "fsc.hop"() {dst = "landing", per = "node", scope = "node", src = "source"} : () -> ()
    "fsc.hop"() {dst = "target", per = "rank", scope = "rank", src = "source"} : () -> ()
    "fsc.hop"() {dst = "target", per = "rank", scope = "rank", src = "landing"} : () -> ()
    "fsc.hop"() {dst = "target", per = "point", scope = "local", src = "target"} : () -> ()
  }) {balance = "none", direction = "dispatch", schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()
  "fsc.combine"() {kind = "copy"} : () -> ()
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
    "fsc.hop"() {dst = "landing", per = "node", scope = "node", src = "source"} : () -> ()
    "fsc.hop"() {dst = "target", per = "rank", scope = "rank", src = "source"} : () -> ()
    "fsc.hop"() {dst = "target", per = "rank", scope = "rank", src = "landing"} : () -> ()
    "fsc.hop"() {dst = "target", per = "point", scope = "local", src = "target"} : () -> ()
  }) {balance = "none", direction = "dispatch", schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()
  "fsc.path"() ({
    "fsc.collect"() {dst = "target", kind = "copy", scope = "local", src = "target"} : () -> ()
    "fsc.collect"() {dst = "landing", kind = "copy", scope = "rank", src = "target"} : () -> ()
    "fsc.collect"() {dst = "source", kind = "copy", scope = "rank", src = "target"} : () -> ()
    "fsc.collect"() {dst = "source", kind = "copy", scope = "node", src = "landing"} : () -> ()
  }) {direction = "combine"} : () -> ()
}
