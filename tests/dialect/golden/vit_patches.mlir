#loc7 = vit_patches.fsc:5:9 to :19
#loc8 = vit_patches.fsc:6:9 to :26
#loc9 = vit_patches.fsc:7:9 to :25
module {
  "fsc.def_extent"() {sym_name = "spec.images"} : () -> () vit_patches.fsc:2:1 to 20:2
  "fsc.def_extent"() {sym_name = "spec.length"} : () -> () vit_patches.fsc:2:1 to 20:2
  "fsc.def_input"() {role = "extent", sym_name = "spec.height", type = tensor<?xi64>} : () -> () vit_patches.fsc:6:13 to :22
  "fsc.def_input"() {role = "extent", sym_name = "spec.width", type = tensor<?xi64>} : () -> () vit_patches.fsc:7:13 to :21
  "fsc.def_input"() {role = "route", sym_name = "spec.packing", type = tensor<?x2xi64>} : () -> () vit_patches.fsc:16:40 to :64
  "fsc.def_segment"() {fields = [{name = "pixels", type = tensor<14x14x3xui8>}], sym_name = "spec.patch"} : () -> () vit_patches.fsc:2:1 to 20:2
  "fsc.def_layout"() {cells = [{name = "pixels", type = tensor<3xui8>}], sym_name = "spec.pictures"} : () -> () vit_patches.fsc:13:30 to :69
  "fsc.def_layout"() {cells = [{name = "pixels", type = tensor<14x14x3xui8>}], sym_name = "spec.sequence"} : () -> () vit_patches.fsc:18:32 to :80
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64 vit_patches.fsc:5:9 to :19):
    %0 = "fsc.extent"() {extent = @spec.images} : () -> i64 vit_patches.fsc:5:9 to :19
    %1 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64 vit_patches.fsc:6:9 to :26
    %c14_i64 = arith.constant 14 : i64 vit_patches.fsc:6:9 to :26
    %2 = "fsc.exact_div"(%1, %c14_i64) : (i64, i64) -> i64 vit_patches.fsc:6:9 to :26
    %3 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64 vit_patches.fsc:7:9 to :25
    %4 = "fsc.exact_div"(%3, %c14_i64) : (i64, i64) -> i64 vit_patches.fsc:7:9 to :25
    %5 = arith.muli %1, %3 : i64 vit_patches.fsc:13:30 to :69
    "fsc.domain"(%5, %0, %2, %4) {operandSegmentSizes = array<i32: 1, 3>} : (i64, i64, i64, i64) -> () vit_patches.fsc:18:3 to :40
  }, {
  ^bb0(%arg0: i64 vit_patches.fsc:5:9 to :19, %arg1: i64 vit_patches.fsc:6:9 to :26, %arg2: i64 vit_patches.fsc:7:9 to :25):
    %0 = "fsc.lookup"(%arg0) {input = @spec.height} : (i64) -> i64 vit_patches.fsc:13:30 to :69
    %1 = "fsc.lookup"(%arg0) {input = @spec.width} : (i64) -> i64 vit_patches.fsc:13:30 to :69
    %c14_i64 = arith.constant 14 : i64 vit_patches.fsc:13:42 to :54
    %2 = arith.muli %arg1, %c14_i64 : i64 vit_patches.fsc:13:42 to :54
    %3 = arith.muli %arg2, %c14_i64 : i64 vit_patches.fsc:13:56 to :68
    %c2_i64 = arith.constant 2 : i64 vit_patches.fsc:18:32 to :80
    %4 = arith.muli %arg0, %c2_i64 : i64 vit_patches.fsc:18:32 to :80
    %c0_i64 = arith.constant 0 : i64 vit_patches.fsc:18:32 to :80
    %5 = arith.addi %4, %c0_i64 : i64 vit_patches.fsc:18:32 to :80
    %6 = "fsc.lookup"(%5) {input = @spec.packing} : (i64) -> i64 vit_patches.fsc:18:32 to :80
    %c1_i64 = arith.constant 1 : i64 vit_patches.fsc:18:32 to :80
    %7 = arith.addi %4, %c1_i64 : i64 vit_patches.fsc:18:32 to :80
    %8 = "fsc.lookup"(%7) {input = @spec.packing} : (i64) -> i64 vit_patches.fsc:18:32 to :80
    %9 = arith.muli %arg1, %1 : i64 vit_patches.fsc:18:32 to :80
    %10 = arith.divsi %9, %c14_i64 : i64 vit_patches.fsc:18:32 to :80
    %11 = arith.addi %8, %10 : i64 vit_patches.fsc:18:32 to :80
    %12 = arith.addi %11, %arg2 : i64 vit_patches.fsc:18:32 to :80
    "fsc.drop"(%6) : (i64) -> () vit_patches.fsc:18:3 to :40
    "fsc.drop"(%8) : (i64) -> () vit_patches.fsc:18:3 to :40
    "fsc.relate"(%6, %12, %arg0, %2, %3, %0, %1) {lengths = [1, 14, 14], operandSegmentSizes = array<i32: 1, 1, 3, 2>} : (i64, i64, i64, i64, i64, i64, i64) -> () vit_patches.fsc:18:3 to :40
  }) {fanout = 1 : i64, indices = ["n", "i", "j"], node = ["cuda", "triton"], num_source_dims = 3 : i64, ragged = 1 : i64, segment = @spec.patch, source = @spec.pictures, sym_name = "vit_patches", target = @spec.sequence} : () -> () vit_patches.fsc:18:3 to :40
  "fsc.dispatch"() {balance = "none", dedup = ["node", "rank"], schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> () vit_patches.fsc:18:3 to :40
  "fsc.combine"() {kind = "copy"} : () -> () vit_patches.fsc:19:3 to :19
} vit_patches.fsc:2:1 to 20:2
#loc = vit_patches.fsc:2:1 to 20:2
#loc1 = vit_patches.fsc:6:13 to :22
#loc2 = vit_patches.fsc:7:13 to :21
#loc3 = vit_patches.fsc:16:40 to :64
#loc4 = vit_patches.fsc:13:30 to :69
#loc5 = vit_patches.fsc:18:32 to :80
#loc6 = vit_patches.fsc:18:3 to :40
#loc10 = vit_patches.fsc:13:42 to :54
#loc11 = vit_patches.fsc:13:56 to :68
#loc12 = vit_patches.fsc:19:3 to :19
