"""The two calls: which checks run in which order, with their limits in seconds. Limits are those of a quarter of an hour with
a GPU, of which two starts of a machine and the time between the calls take the rest."""
from check_gtest import cutlass, gate, graphs, gtest, ranks, recurrent, sanitizer, search
from check_schedule import Check
from check_speed import (LSTM, PYTORCH_RESNET, RESNET, beside_pytorch, characters_per_second, comparison, images_per_second, kernel_table,
                         lstm_kernels, positions, pytorch_graphs)
from check_training import names, resume, shared_gpu, small_pictures

CALL_SECONDS = {1: 405, 2: 225}

GATE, FIRST_IMAGES, SEARCH, ALGORITHMS = "gate", "ResNet-50 bf16 raw, shipped plans", "search bf16", "recurrent algorithms"
SEARCH_AGAIN, SEARCH_HALF, NCCL = "search of four candidates", "search fp16", "NCCL, 1 rank"

SOUND, IMAGES, CHARACTERS, PEER, TABLE = "what works", "images/s", "characters/s", "PyTorch", "kernel table"
OPERATIONS, HALF, RESUMED, SPARE = "operations", "fp16", "what call 1 did not pass", "as time allows"
RESUMED_SECONDS = 90

THREE_KERNELS = "CudaKernelsActivation.ColumnSumsTakeWide*:CudaKernelsNorm.BackwardSums*:CudaKernelsLoss.SumsGrow*"


def pytorch_resnet(precision, table):
    return pytorch_graphs("resnet_bench.py", "images/s", [precision], table, *RESNET, "--input", "raw")


def pytorch_lstm(precision, table):
    return pytorch_graphs("lstm_bench.py", "characters/s", [precision], table, *LSTM, "--only", "4x512", "--only", "4x128", factor=positions)


def spare(name, seconds, what, needs=()):
    return Check(SPARE, name, seconds, what, needs, True)


FIRST_CALL = [
    Check(SOUND, GATE, 25, gate),
    # The emulation is slow in norms, which the unit tests run, too.
    Check(SOUND, "own kernels", 20, gtest("CudaKernels*", dry_name="CudaKernels*-CudaKernelsNorm.*")),
    Check(SOUND, "CUTLASS's kernels", 12, cutlass),
    Check(SOUND, ALGORITHMS, 20, recurrent),
    Check(SOUND, "graphs = single commands, bf16", 29, graphs),
    Check(IMAGES, FIRST_IMAGES, 20, images_per_second("bf16", "raw", "resnet_bf16_raw_shipped", kept=True)),
    Check(IMAGES, SEARCH, 60, search("bf16", candidates=1, deadline=55)),
    Check(IMAGES, "ResNet-50 bf16 raw, its choices", 16, images_per_second("bf16", "raw", "resnet_bf16_raw"), (SEARCH,)),
    Check(IMAGES, "ResNet-50 bf16 jpeg, its choices", 16, images_per_second("bf16", "jpeg", "resnet_bf16_jpeg"), ((SEARCH, FIRST_IMAGES),)),
    Check(CHARACTERS, "LSTM 4x512 bf16", 16, characters_per_second("bf16", "4x512", "lstm_4x512_bf16"), (ALGORITHMS,)),
    Check(CHARACTERS, "LSTM 4x128 bf16", 16, characters_per_second("bf16", "4x128", "lstm_4x128_bf16"), (ALGORITHMS,)),
    Check(TABLE, "kernel table bf16", 14, kernel_table("bf16"), ((SEARCH, FIRST_IMAGES),)),
    Check(PEER, PYTORCH_RESNET, 50, pytorch_resnet("bf16", "pytorch_resnet")),
    Check(PEER, "PyTorch, LSTM in CUDA graphs", 30, pytorch_lstm("bf16", "pytorch_lstm")),
    Check(OPERATIONS, "operations bf16", 30, gtest("*GpuOperations*bf16", share=0.7)),
    Check(HALF, "ResNet-50 fp16 raw", 15, images_per_second("fp16", "raw", "resnet_fp16_raw", kept=True)),
    Check(HALF, "LSTM 4x512 fp16", 16, characters_per_second("fp16", "4x512", "lstm_4x512_fp16"), (ALGORITHMS,)),
]

# In call 1 these use the time that is left at its end. What they did not pass goes to the end of call 2.
FIRST_SPARE = [
    spare("LSTM, kernels of PyTorch's cuDNN", 25, lstm_kernels(512)),
    spare("LSTM, kernels of PyTorch's cuDNN, hidden 128", 25, lstm_kernels(128)),
    spare("PyTorch, LSTM in CUDA graphs, fp16", 30, pytorch_lstm("fp16", "pytorch_lstm_fp16")),
    spare("operations fp16", 30, gtest("*GpuOperations*fp16", share=0.7)),
    spare(SEARCH_HALF, 60, search("fp16", candidates=1, deadline=55)),
    spare("kernel table fp16", 22, kernel_table("fp16"), (SEARCH_HALF,)),
    spare("ResNet-50 fp16 raw, its choices", 16, images_per_second("fp16", "raw", "resnet_fp16_raw_choices"), (SEARCH_HALF,)),
    spare("PyTorch, ResNet-50 in CUDA graphs, fp16", 50, pytorch_resnet("fp16", "pytorch_resnet_fp16")),
    spare("graphs = single commands, all", 70, gtest("*GpuGraphs*", share=0.1)),
]

SECOND_CALL = [
    Check(PEER, "ResNet-50 bf16 again", 62, beside_pytorch),
    Check(IMAGES, SEARCH_AGAIN, 49, search("bf16", candidates=4, deadline=45)),
    Check(IMAGES, "ResNet-50 bf16 raw, four candidates", 14, images_per_second("bf16", "raw", "resnet_bf16_raw_four"), (SEARCH_AGAIN,)),
]

SECOND_SPARE = [
    spare(NCCL, 25, ranks(1, "*GpuRanks*")),
    spare("NCCL, 2 ranks on a GPU, abort", 60, ranks(2, "*GpuRanks*"), (NCCL,)),
    spare("memory against plan", 30, gtest("GpuMemory*", share=0, plans="plans")),
    spare("three starts, ResNet", 40, resume(small_pictures)),
    spare("three starts, LSTM", 25, resume(names), (ALGORITHMS,)),
    spare("memcheck of CUTLASS's kernels", 45, sanitizer("memcheck", "*GpuHopper.*"), ("CUTLASS's kernels",)),
    spare("memcheck of three own kernels", 30, sanitizer("memcheck", THREE_KERNELS)),
]

# For whoever has more time (--seconds). They come after what call 1 had no time for.
LONG = [
    spare("NCCL, 4 ranks on a GPU", 60, ranks(4, "*GpuRanks*", dry_name="*GpuRanks.Buckets*"), (NCCL,)),
    spare("ranks that share a GPU", 35, shared_gpu),
    spare("training: CPU's curve", 45, gtest("*GpuTraining.TwentySteps*", share=0.1, dry_name="*GpuTraining.TwentySteps*/LstmDropout")),
    spare("training: each precision", 150, gtest("*GpuTraining.OneStep*", share=0.1, dry_name="*GpuTraining.OneStep*/LstmDropout")),
    spare("same bits each time", 60, gtest("*GpuTraining.HasTheSameBits*", share=0.1, dry_name="*GpuTraining.HasTheSameBits*/LstmDropout")),
    spare("racecheck of three own kernels", 45, sanitizer("racecheck", THREE_KERNELS)),
    spare("operations fp32", 20, gtest("*GpuOperations*fp32", share=0.8)),
    spare("operations tf32", 20, gtest("*GpuOperations*tf32", share=0.8)),
    spare("LSTM beside PyTorch", 40, comparison("lstm_bench.py", "Lstm", "beside_lstm", *LSTM, "--precision", "bf16", "--precision", "fp16",
                                               "--only", "4x512", "--ways", "eager,graphs"), (ALGORITHMS,)),
    spare("ResNet-50 beside PyTorch", 90, comparison("resnet_bench.py", "ResNet", "beside_resnet", *RESNET, "--precision", "bf16", "--precision", "fp16",
                                                     "--input", "raw", "--ways", "eager,graphs")),
]


def checks_of(call, before=()):
    """The checks of a call in their order. `before` has the results of the call that is resumed: what they passed is not
    run again, except for the gate."""
    passed = {result["name"] for result in before if result["status"] == "passed"} - {GATE}
    open_ = lambda checks: [check for check in checks if check.name not in passed]
    if call == 1:
        return open_(FIRST_CALL + FIRST_SPARE)
    again = [check._replace(part=RESUMED) for check in open_(FIRST_CALL[1:])] if before else []
    rest = open_(FIRST_SPARE) if before else []
    return [FIRST_CALL[0]._replace(seconds=10), *again, *open_(SECOND_CALL + SECOND_SPARE), *rest, *open_(LONG)]


def limit_seconds(call):
    """The sum of a call's limits. Checks that use spare time have no part in it."""
    if call == 1:
        return sum(check.seconds for check in FIRST_CALL)
    return 10 + RESUMED_SECONDS + sum(check.seconds for check in SECOND_CALL)
