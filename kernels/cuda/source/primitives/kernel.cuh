// What every kernel is written with. No header of CUDA's is included, so that the sources compile with
// the run-time compiler alone and raise no question of licences.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// The upper half of an f32.
typedef u16 bf16;

// KERNEL(name, threads, (parameters)) { body }: an entry of the module for blocks of `threads`.
// KERNEL_BESIDE says besides how many blocks a multiprocessor has registers for.
// SHARED(T, name): the block's dynamic shared memory as elements of T.
#ifdef __CUDA_ARCH__
#define KERNEL(name, threads, parameters) \
    extern "C" __global__ void __launch_bounds__(threads) name parameters
#define KERNEL_BESIDE(name, threads, blocks, parameters) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name parameters
#define SHARED(T, name)                                       \
    extern __shared__ __align__(16) unsigned char shared_memory[]; \
    T* name = reinterpret_cast<T*>(shared_memory)
#define DEVICE __device__ __forceinline__
// A barrier of the whole block, and one of a warp, which also order shared memory.
#define BLOCK_BARRIER() __syncthreads()
#define WARP_BARRIER() __syncwarp()
#endif

DEVICE u32 smaller(u32 a, u32 b) { return a < b ? a : b; }
DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }
DEVICE u32 divided_up(u32 value, u32 step) { return (value + step - 1) / step; }
