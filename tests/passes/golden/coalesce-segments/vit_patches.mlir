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
    %0 = "fsc.extent"() {extent = @spec.images} : () -> i64
    %1 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64
    %c14_i64 = arith.constant 14 : i64
    %2 = "fsc.exact_div"(%1, %c14_i64) : (i64, i64) -> i64
    %3 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
    %4 = "fsc.exact_div"(%3, %c14_i64) : (i64, i64) -> i64
    %5 = arith.muli %1, %3 : i64
    "fsc.domain"(%5, %0, %2, %4) {operandSegmentSizes = array<i32: 1, 3>} : (i64, i64, i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64, %arg1: i64, %arg2: i64):
    %0 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64
    %1 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
    %c14_i64 = arith.constant 14 : i64
    %2 = arith.muli %arg1, %c14_i64 : i64
    %3 = arith.muli %arg2, %c14_i64 : i64
    %c2_i64 = arith.constant 2 : i64
    %4 = arith.muli %arg0, %c2_i64 : i64
    %c0_i64 = arith.constant 0 : i64
    %5 = arith.addi %4, %c0_i64 : i64
    %6 = "fsc.lookup"(%5) {input = @spec.packing} : (i64) -> i64
    %c1_i64 = arith.constant 1 : i64
    %7 = arith.addi %4, %c1_i64 : i64
    %8 = "fsc.lookup"(%7) {input = @spec.packing} : (i64) -> i64
    %9 = arith.muli %arg1, %1 : i64
    %10 = arith.divsi %9, %c14_i64 : i64
    %11 = arith.addi %8, %10 : i64
    %12 = arith.addi %11, %arg2 : i64
    "fsc.drop"(%6) : (i64) -> ()
    "fsc.drop"(%8) : (i64) -> ()
    "fsc.relate"(%6, %12, %arg0, %2, %3, %0, %1) {lengths = [1, 14, 14], operandSegmentSizes = array<i32: 1, 1, 3, 2>} : (i64, i64, i64, i64, i64, i64, i64) -> ()
  }) {fanout = 1 : i64, indices = ["n", "i", "j"], node = ["cuda", "triton"], num_source_dims = 3 : i64, ragged = 1 : i64, segment = @spec.patch, source = @spec.pictures, sym_name = "vit_patches", target = @spec.sequence} : () -> ()
  "fsc.dispatch"() {balance = "none", dedup = ["node", "rank"], schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()
  "fsc.combine"() {kind = "copy"} : () -> ()
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
    %0 = "fsc.extent"() {extent = @spec.images} : () -> i64
    %1 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64
    %c14_i64 = arith.constant 14 : i64
    %2 = "fsc.exact_div"(%1, %c14_i64) : (i64, i64) -> i64
    %3 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
    %4 = "fsc.exact_div"(%3, %c14_i64) : (i64, i64) -> i64
    %5 = arith.muli %1, %3 : i64
    "fsc.domain"(%5, %0, %2, %4) {operandSegmentSizes = array<i32: 1, 3>} : (i64, i64, i64, i64) -> ()
  }, {
  ^bb0(%arg0: i64, %arg1: i64, %arg2: i64):
    %0 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64
    %1 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64
    %c14_i64 = arith.constant 14 : i64
    %2 = arith.muli %arg1, %c14_i64 : i64
    %3 = arith.muli %arg2, %c14_i64 : i64
    %c2_i64 = arith.constant 2 : i64
    %4 = arith.muli %arg0, %c2_i64 : i64
    %c0_i64 = arith.constant 0 : i64
    %5 = arith.addi %4, %c0_i64 : i64
    %6 = "fsc.lookup"(%5) {input = @spec.packing} : (i64) -> i64
    %c1_i64 = arith.constant 1 : i64
    %7 = arith.addi %4, %c1_i64 : i64
    %8 = "fsc.lookup"(%7) {input = @spec.packing} : (i64) -> i64
    %9 = arith.muli %arg1, %1 : i64
    %10 = arith.divsi %9, %c14_i64 : i64
    %11 = arith.addi %8, %10 : i64
    %12 = arith.addi %11, %arg2 : i64
    "fsc.drop"(%6) : (i64) -> ()
    "fsc.drop"(%8) : (i64) -> ()
    %13 = "fsc.cell_base"(%arg0) : (i64) -> i64
    %14 = arith.muli %2, %1 : i64
    %15 = arith.addi %14, %3 : i64
    %16 = arith.addi %13, %15 : i64
    "fsc.point"(%16, %6, %12, %1) {operandSegmentSizes = array<i32: 1, 1, 1, 1>} : (i64, i64, i64, i64) -> ()
  }) {fanout = 1 : i64, indices = ["n", "i", "j"], node = ["cuda", "triton"], num_source_dims = 3 : i64, ragged = 1 : i64, runs = [{cell_elems = 3 : i64, copy_dtype = i16, dtype = ui8, name = "pixels", run_dims = [{count = 14 : i64, dst_stride = 42 : i64, src_stride = "src_stride0"}], run_elems = 42 : i64, seg_elems = 588 : i64, unit_bytes = 2 : i64}], segment = @spec.patch, source = @spec.pictures, sym_name = "vit_patches", target = @spec.sequence} : () -> ()
  "fsc.dispatch"() {balance = "none", dedup = ["node", "rank"], schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> ()
  "fsc.combine"() {kind = "copy"} : () -> ()
}
