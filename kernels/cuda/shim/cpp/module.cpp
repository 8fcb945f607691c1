// The CUDA sources, compiled as C++.

#include "cuda.h"

#include "primitives/kernel.cuh"
#include "twins.h"
// After the twins, which it takes the place of instructions by.
#include "module.cu"

#include "selftest.h"

namespace shim {

const Entry* find(const char* name) {
    const Registry& all = registry();
    for (uint32_t i = 0; i < all.count; ++i) {
        if (strcmp(all.entries[i].name, name) == 0) return &all.entries[i];
    }
    return nullptr;
}

const char* name_of(uint32_t index) {
    const Registry& all = registry();
    return index < all.count ? all.entries[index].name : nullptr;
}

}  // namespace shim
