// Fibers: one for each CUDA thread of a block, all on one thread of the host. A fiber runs until it
// gives way, so nothing here needs a lock.
#pragma once

#include <cstddef>

namespace shim {

// Where a suspended fiber or the scheduler goes on.
struct Context {
    void* state = nullptr;
};

// Runs `to` from where it gave way, and remembers in `from` where the caller goes on.
void switch_context(Context& from, Context& to);

// Makes `context` begin `entry` on `stack`; `entry` must never return.
void prepare_context(Context& context, char* stack, size_t bytes, void (*entry)());

}  // namespace shim
