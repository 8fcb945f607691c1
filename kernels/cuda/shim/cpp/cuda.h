// What the CUDA compiler gives a kernel, for a C++ compiler: threads, barriers, collectives, and twins of
// the instructions that the sources use by name.
#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "registry.h"

#define DEVICE inline

namespace shim {

struct Registry {
    static constexpr uint32_t ROOM = 256;
    Entry entries[ROOM];
    uint32_t count;
};

// Made by the first entry that registers itself, before anything is launched.
inline Registry& registry() {
    static Registry kernels;
    return kernels;
}

// Takes a kernel's parameters apart by their types.
template <auto KERNEL> struct Caller;
template <class... P, void (*KERNEL)(P...)> struct Caller<KERNEL> {
    template <size_t... I> static void call(void** parameters, std::index_sequence<I...>) {
        KERNEL(*static_cast<std::remove_const_t<P>*>(parameters[I])...);
    }
    static void body(void** parameters) { call(parameters, std::index_sequence_for<P...>()); }
    static constexpr uint32_t COUNT = sizeof...(P);
};

struct Registered {
    Registered(const char* name, uint32_t threads, uint32_t parameters, void (*body)(void**)) {
        Registry& all = registry();
        if (all.count == Registry::ROOM) __builtin_trap();
        all.entries[all.count++] = {name, threads, parameters, body};
    }
};

// A place in the sources, the same for all instances of a template.
constexpr Site site_of(const char* file, uint32_t line) {
    uint32_t hash = 2166136261u;
    for (; *file; ++file) hash = (hash ^ uint32_t(uint8_t(*file))) * 16777619u;
    return (hash ^ line) | 1;
}

}  // namespace shim

#define HERE (shim::site_of(__FILE__, __LINE__))

#define KERNEL(name, threads, parameters)                                                       \
    static void name##_kernel parameters;                                                       \
    static const shim::Registered name##_registered(#name, threads,                             \
                                                    shim::Caller<&name##_kernel>::COUNT,        \
                                                    &shim::Caller<&name##_kernel>::body);       \
    static void name##_kernel parameters

#define KERNEL_BESIDE(name, threads, blocks, parameters) KERNEL(name, threads, parameters)

#define SHARED(T, name) T* name = reinterpret_cast<T*>(shim::block().shared)

#define BLOCK_BARRIER() shim::block_barrier(HERE)
#define WARP_BARRIER() shim::warp_barrier(HERE)
#define threadIdx (shim::block().running->thread)
#define blockIdx (shim::block().block_index)
#define blockDim (shim::block().block_dim)
#define gridDim (shim::block().grid_dim)

inline uint32_t lane_index() { return shim::block().running->index % shim::WARP; }

namespace shim {

template <class T> T shuffle_xor(T value, uint32_t lanes, Site site) {
    show(&value, sizeof value, site);
    T other;
    memcpy(&other, shown_by(lane_index() ^ lanes), sizeof other);
    return other;
}

inline void check_alignment(const void* address, uint32_t bytes) {
    if (reinterpret_cast<uintptr_t>(address) % bytes != 0) fail(MISALIGNED);
    note_read(address, bytes);
}

inline float bf16_value(uint32_t bits) {
    float value;
    bits <<= 16;
    memcpy(&value, &bits, 4);
    return value;
}

}  // namespace shim

#define SHUFFLE_XOR(value, lanes) shim::shuffle_xor(value, lanes, HERE)
