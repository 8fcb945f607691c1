// Wide loads, and copies from global to shared memory that run beside the arithmetic.
#pragma once

// 16 bytes, on a boundary of 16.
struct alignas(16) Words4 {
    u32 word[4];
};

// Eight bytes, on a boundary of eight.
struct alignas(8) Words2 {
    u32 word[2];
};

#ifdef __CUDA_ARCH__
DEVICE Words4 load16(const void* from) { return *static_cast<const Words4*>(from); }

// Loads of what nothing writes meanwhile. They stay where the source has them, before what follows.
DEVICE Words4 load16_again(const void* from) {
    Words4 words;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]),
                   "=r"(words.word[3])
                 : "l"(from));
    return words;
}

// The same of what a multiprocessor reads once, which its cache need not keep.
DEVICE Words4 load16_once(const void* from) {
    Words4 words;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]),
                   "=r"(words.word[3])
                 : "l"(from));
    return words;
}

DEVICE Words2 load8_once(const void* from) {
    Words2 words;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words.word[0]), "=r"(words.word[1])
                 : "l"(from));
    return words;
}

DEVICE Words2 load8_again(const void* from) {
    Words2 words;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words.word[0]), "=r"(words.word[1])
                 : "l"(from));
    return words;
}

DEVICE u32 load4_again(const void* from) {
    u32 word;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(word) : "l"(from));
    return word;
}

DEVICE u32 load2_again(const void* from) {
    u16 half;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(half) : "l"(from));
    return half;
}

// A value that is computed here and kept, instead of again wherever it is used.
DEVICE u32 kept(u32 value) {
    u32 result;
    asm volatile("mov.b32 %0, %1;" : "=r"(result) : "r"(value));
    return result;
}

template <class T> DEVICE const T* kept(const T* value) {
    const T* result;
    asm volatile("mov.b64 %0, %1;" : "=l"(result) : "l"(value));
    return result;
}

// Starts a copy of 16 bytes; zeros instead where `present` is false.
DEVICE void copy16_async(void* shared, const void* global, bool present) {
    const u32 address = (u32)__cvta_generic_to_shared(shared);
    const int bytes = present ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
                 "r"(bytes)
                 : "memory");
}

// Ends a group of copies.
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most LEFT of this thread's groups are unfinished.
template <int LEFT> DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
#else
DEVICE Words4 load16(const void* from) {
    // A GPU faults here.
    shim::check_alignment(from, 16);
    return *static_cast<const Words4*>(from);
}
template <class T> DEVICE T kept(T value) { return value; }
DEVICE Words4 load16_again(const void* from) { return load16(from); }
DEVICE Words4 load16_once(const void* from) { return load16(from); }
DEVICE Words2 load8_again(const void* from) {
    shim::check_alignment(from, 8);
    return *static_cast<const Words2*>(from);
}
DEVICE Words2 load8_once(const void* from) { return load8_again(from); }
DEVICE u32 load4_again(const void* from) {
    shim::check_alignment(from, 4);
    return *static_cast<const u32*>(from);
}
DEVICE u32 load2_again(const void* from) {
    shim::check_alignment(from, 2);
    return *static_cast<const u16*>(from);
}
#endif

// Eight elements from `from`, of which `count` are there; zeros behind them. `wide`: they lie on a
// boundary of 16 bytes if all are there.
DEVICE void load8(const bf16* from, u32 count, bool wide, float* to) {
    if (wide && count >= 8) {
        const Words4 words = load16(from);
        for (int i = 0; i < 4; ++i) {
            to[2 * i] = float_of_bits(words.word[i] << 16);
            to[2 * i + 1] = float_of_bits(words.word[i] & 0xffff0000u);
        }
    } else {
        for (u32 i = 0; i < 8; ++i) to[i] = i < count ? to_float(from[i]) : 0.0f;
    }
}

DEVICE void load8(const float* from, u32 count, bool wide, float* to) {
    if (wide && count >= 8) {
        const Words4 low = load16(from);
        const Words4 high = load16(from + 4);
        for (int i = 0; i < 4; ++i) {
            to[i] = float_of_bits(low.word[i]);
            to[4 + i] = float_of_bits(high.word[i]);
        }
    } else {
        for (u32 i = 0; i < 8; ++i) to[i] = i < count ? from[i] : 0.0f;
    }
}

// As `load8`, the other way: elements behind `count` are left alone.
DEVICE void store8(bf16* to, u32 count, bool wide, const float* from) {
    if (wide && count >= 8) {
        Words4 words;
        for (int i = 0; i < 4; ++i) words.word[i] = bf16_pair(from[2 * i], from[2 * i + 1]);
        *reinterpret_cast<Words4*>(to) = words;
    } else {
        for (u32 i = 0; i < 8; ++i) {
            if (i < count) to[i] = bf16_of(from[i]);
        }
    }
}

DEVICE void store8(float* to, u32 count, bool wide, const float* from) {
    if (wide && count >= 8) {
        Words4 words[2];
        for (int i = 0; i < 8; ++i) words[i / 4].word[i % 4] = bits_of_float(from[i]);
        reinterpret_cast<Words4*>(to)[0] = words[0];
        reinterpret_cast<Words4*>(to)[1] = words[1];
    } else {
        for (u32 i = 0; i < 8; ++i) {
            if (i < count) to[i] = from[i];
        }
    }
}
