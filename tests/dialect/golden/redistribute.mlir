#loc4 = redistribute.fsc:5:9 to :25
module {
  "fsc.def_extent"() {sym_name = "spec.rank"} : () -> () redistribute.fsc:2:1 to 15:2
  "fsc.def_extent"() {sym_name = "spec.ranks"} : () -> () redistribute.fsc:2:1 to 15:2
  "fsc.def_segment"() {fields = [{name = "x", type = tensor<1024xf32>}], sym_name = "spec.row"} : () -> () redistribute.fsc:2:1 to 15:2
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<1024xf32>}], sym_name = "spec.block"} : () -> () redistribute.fsc:12:12 to :23
  "fsc.def_layout"() {cells = [{name = "x", type = tensor<1024xf32>}], sym_name = "spec.cyclic"} : () -> () redistribute.fsc:12:24 to :67
  "fsc.shuffle"() ({
  ^bb0(%arg0: i64 redistribute.fsc:5:9 to :25):
    %c8192_i64 = arith.constant 8192 : i64 redistribute.fsc:5:9 to :25
    %0 = "fsc.extent"() {extent = @spec.ranks} : () -> i64 redistribute.fsc:5:9 to :25
    %1 = arith.divsi %c8192_i64, %0 : i64 redistribute.fsc:5:9 to :25
    "fsc.domain"(%1) {operandSegmentSizes = array<i32: 0, 1>} : (i64) -> () redistribute.fsc:12:3 to :20
  }, {
  ^bb0(%arg0: i64 redistribute.fsc:5:9 to :25):
    %0 = "fsc.extent"() {extent = @spec.rank} : () -> i64 redistribute.fsc:12:24 to :67
    %c8192_i64 = arith.constant 8192 : i64 redistribute.fsc:12:24 to :67
    %1 = "fsc.extent"() {extent = @spec.ranks} : () -> i64 redistribute.fsc:12:24 to :67
    %2 = arith.divsi %c8192_i64, %1 : i64 redistribute.fsc:12:24 to :67
    %3 = arith.muli %0, %2 : i64 redistribute.fsc:12:24 to :67
    %4 = arith.addi %3, %arg0 : i64 redistribute.fsc:12:24 to :67
    %5 = arith.remsi %4, %1 : i64 redistribute.fsc:12:24 to :67
    %6 = arith.divsi %4, %1 : i64 redistribute.fsc:12:24 to :67
    "fsc.relate"(%5, %6, %arg0) {lengths = [1], operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> () redistribute.fsc:12:3 to :20
  }) {fanout = 1 : i64, indices = ["i"], node = ["cuda", "triton"], num_source_dims = 1 : i64, ragged = 0 : i64, segment = @spec.row, source = @spec.block, sym_name = "redistribute", target = @spec.cyclic} : () -> () redistribute.fsc:12:3 to :20
  "fsc.dispatch"() {balance = "none", dedup = ["node", "rank"], schedule = "pairwise", slice_bytes = 8388608 : i64} : () -> () redistribute.fsc:12:3 to :20
  "fsc.combine"() {kind = "copy"} : () -> () redistribute.fsc:14:3 to :19
} redistribute.fsc:2:1 to 15:2
#loc = redistribute.fsc:2:1 to 15:2
#loc1 = redistribute.fsc:12:12 to :23
#loc2 = redistribute.fsc:12:24 to :67
#loc3 = redistribute.fsc:12:3 to :20
#loc5 = redistribute.fsc:14:3 to :19
