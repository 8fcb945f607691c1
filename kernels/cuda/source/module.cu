// All kernels in one module. The CPU's build of them (shim/cpp/module.cpp) includes this file too.

#include "primitives/kernel.cuh"
#include "primitives/numbers.cuh"
#include "primitives/warp.cuh"
#include "primitives/memory.cuh"
#include "primitives/matrix.cuh"

#include "compressed/records.cuh"
#include "compressed/decompress.cuh"
#include "compressed/stored.cuh"
#include "compressed/kv.cuh"

#include "rows/embed.cuh"
#include "rows/norm.cuh"
#include "rows/rms.cuh"
#include "rows/rope.cuh"
#include "rows/argmax.cuh"

#include "linear/finish.cuh"
#include "linear/sources.cuh"
#include "linear/small.cuh"
#include "linear/wide.cuh"
#include "linear/plain.cuh"

#include "experts/route.cuh"
#include "experts/group.cuh"
#include "experts/linear.cuh"
#include "experts/combine.cuh"

#include "attention/unit.cuh"
#include "attention/scores.cuh"
#include "attention/softmax.cuh"
#include "attention/values.cuh"
#include "attention/decode.cuh"
#include "attention/prefill.cuh"
#include "attention/matrix.cuh"
#include "attention/append.cuh"
