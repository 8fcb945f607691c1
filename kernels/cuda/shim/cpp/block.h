// A block of CUDA threads on one thread of the host: who waits for what, and what goes wrong.
#pragma once

#include <cstdint>

#include "fiber.h"

namespace shim {

// What `tandem_shim_launch` returns; `cuda_shim::Fault` names the same numbers.
enum Fault : int {
    NONE = 0,
    UNKNOWN_KERNEL = 1,
    BAD_SHAPE = 2,
    DIVERGENT_BARRIER = 3,
    DIVERGENT_WARP = 4,
    SHARED_OVERRUN = 5,
    STACK_OVERRUN = 6,
    OUT_OF_MEMORY = 7,
    MISALIGNED = 8,
    TOO_MANY_COPIES = 9,
};

struct Dim3 {
    uint32_t x, y, z;
};

// A place in the sources; 0 is none.
typedef uint32_t Site;

constexpr uint32_t WARP = 32;
constexpr uint32_t THREADS_MAX = 1024;
constexpr uint32_t SHARED_MAX = 48 << 10;
// Bytes that a lane shows to the others of its warp.
constexpr uint32_t SHOWN = 32;
constexpr uint32_t COPIES_MAX = 64;

enum class Waits : uint8_t { NOTHING, BLOCK, WARP, ENDED };

// A copy that was started and not yet waited for.
struct Copy {
    void* to;
    const void* from;
    bool present;
    uint32_t bytes;
    uint32_t group;
};

struct Fiber {
    Context context;
    Dim3 thread;
    uint32_t index;
    Waits waits;
    Site site;
    // Double, since a lane may come to its next collective before another has read this one.
    alignas(16) uint8_t shown[2][SHOWN];
    uint32_t collectives;
    uint32_t groups;
    uint32_t copy_count;
    Copy copies[COPIES_MAX];
    char* stack;
};

// The block at work on this thread of the host.
struct Block {
    Fiber* fibers;
    Fiber* running;
    Context scheduler;
    Dim3 block_dim, grid_dim, block_index;
    uint8_t* shared;
    uint32_t shared_bytes;
    Fault fault;
    void (*body)(void**);
    void** parameters;
};

Block& block();

// Suspends the running fiber until all threads of the block, or all lanes of its warp, are there.
void block_barrier(Site site);
void warp_barrier(Site site);
// Shows `bytes` to the other lanes and waits for them; then `shown_by` gives what a lane showed.
void show(const void* from, uint32_t bytes, Site site);
const void* shown_by(uint32_t lane);
// Ends the launch with an error; does not return.
[[noreturn]] void fail(Fault fault);

// Counts what a block reads of the range that a test watches.
void note_read(const void* global, uint32_t bytes);

void start_copy(void* shared, const void* global, bool present, uint32_t bytes);
void commit_copies();
// Copies what belongs to all groups but the `left` newest. In even orders that is when a copy happens, as
// late as the program allows, so that a missing wait shows; in odd ones it happens as soon as it is
// started, so that a place that is still read shows.
void wait_copies(uint32_t left);

}  // namespace shim
