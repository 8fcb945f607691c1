// The kernels by name.
#pragma once

#include "block.h"

namespace shim {

struct Entry {
    const char* name;
    // The most threads of a block.
    uint32_t threads;
    uint32_t parameters;
    // Calls the kernel with what the parameters' addresses lead to.
    void (*body)(void**);
};

// Null for names that no kernel has.
const Entry* find(const char* name);
// Null behind the last one.
const char* name_of(uint32_t index);

}  // namespace shim
