// A launch: block after block, each on fibers of this thread of the host.
//
// Whoever waits is only ever released by the scheduler, and the scheduler always either runs somebody or
// ends the launch: a barrier that not all reach is an error, never a hang.

#include <cstdlib>
#include <cstring>

#include "registry.h"

namespace shim {

namespace {

constexpr size_t STACK = 64 << 10;
// Lies at the low end of every stack and around shared memory.
constexpr uint8_t CANARY = 0xa5;
constexpr uint32_t CANARY_BYTES = 64;
constexpr uint32_t SITES_MAX = 64;

// Memory of this thread of the host, kept between launches and freed with the thread.
struct Workspace {
    Fiber* fibers = nullptr;
    char* stacks = nullptr;
    uint8_t* shared = nullptr;
    uint32_t threads = 0;

    bool reserve(uint32_t wanted) {
        if (!shared) {
            void* memory = nullptr;
            if (posix_memalign(&memory, 128, SHARED_MAX + 128 + CANARY_BYTES) != 0) return false;
            shared = static_cast<uint8_t*>(memory);
        }
        if (wanted <= threads) return true;
        free(fibers);
        free(stacks);
        fibers = static_cast<Fiber*>(calloc(wanted, sizeof(Fiber)));
        stacks = static_cast<char*>(malloc(wanted * STACK));
        threads = fibers && stacks ? wanted : 0;
        return threads == wanted;
    }

    ~Workspace() {
        free(fibers);
        free(stacks);
        free(shared);
    }
};

// What tests set and ask for.
struct Controls {
    uint32_t seed = 0;
    Site dropped = 0;
    Site sites[SITES_MAX];
    uint32_t site_count = 0;
};

// A range of global memory of which reads are counted, in sectors: each once for a block, which has them
// in its cache then.
struct Watch {
    static constexpr uintptr_t SECTOR = 32;
    uintptr_t begin = 0;
    uintptr_t end = 0;
    uint64_t sectors = 0;
    // Of the running block, one for each sector.
    uint8_t* seen = nullptr;

    void set(uintptr_t from, uintptr_t bytes) {
        free(seen);
        seen = bytes ? static_cast<uint8_t*>(calloc(bytes / SECTOR + 2, 1)) : nullptr;
        begin = from;
        end = seen ? from + bytes : from;
        sectors = 0;
    }
    void begin_block() {
        if (seen) memset(seen, 0, (end - begin) / SECTOR + 2);
    }
    ~Watch() { free(seen); }
};

thread_local Watch watch;
thread_local Workspace workspace;
thread_local Controls controls;

uint32_t mixed(uint32_t value) {
    value ^= value >> 16;
    value *= 0x7feb352du;
    value ^= value >> 15;
    value *= 0x846ca68bu;
    return value ^ value >> 16;
}

void begin() {
    Block& here = block();
    here.body(here.parameters);
    here.running->waits = Waits::ENDED;
    switch_context(here.running->context, here.scheduler);
}

// The thread whose turn it is at `turn` of `count`: in order, backwards, or from a seeded start by
// steps that visit all.
uint32_t chosen(uint32_t turn, uint32_t count, uint32_t round) {
    if (controls.seed == 0) return turn;
    if (controls.seed == 1) return count - 1 - turn;
    const uint32_t random = mixed(controls.seed + 0x9e3779b9u * round);
    const uint32_t place = random % 2 ? turn : count - 1 - turn;
    return (place + random / 2) % count;
}

void run(Fiber& fiber) {
    Block& here = block();
    here.running = &fiber;
    switch_context(here.scheduler, fiber.context);
}

bool all_wait(const Fiber* fibers, uint32_t count, Waits waits) {
    for (uint32_t i = 0; i < count; ++i) {
        if (fibers[i].waits != waits || fibers[i].site != fibers[0].site) return false;
    }
    return true;
}

void release(Fiber* fibers, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) fibers[i].waits = Waits::NOTHING;
}

// Runs a warp until it waits for the block or has ended.
void run_warp(Fiber* lanes, uint32_t round) {
    Block& here = block();
    for (;;) {
        for (uint32_t turn = 0; turn < WARP; ++turn) {
            Fiber& fiber = lanes[chosen(turn, WARP, round)];
            if (fiber.waits == Waits::NOTHING) run(fiber);
            if (here.fault) return;
        }
        if (all_wait(lanes, WARP, Waits::WARP)) {
            release(lanes, WARP);
            round += 1;
            continue;
        }
        for (uint32_t lane = 0; lane < WARP; ++lane) {
            if (lanes[lane].waits == Waits::WARP) here.fault = DIVERGENT_WARP;
        }
        return;
    }
}

void run_block(uint32_t threads) {
    Block& here = block();
    for (uint32_t i = 0; i < threads; ++i) {
        Fiber& fiber = here.fibers[i];
        char* stack = fiber.stack;
        fiber = Fiber();
        fiber.stack = stack;
        fiber.index = i;
        fiber.thread = {i % here.block_dim.x, i / here.block_dim.x % here.block_dim.y,
                        i / here.block_dim.x / here.block_dim.y};
        memset(stack, CANARY, CANARY_BYTES);
        prepare_context(fiber.context, stack, STACK, begin);
    }
    // Garbage that shows: NaN in every number format, a place far outside as an index.
    memset(here.shared, 0xff, here.shared_bytes);
    memset(here.shared + here.shared_bytes, CANARY, CANARY_BYTES);
    watch.begin_block();
    for (uint32_t round = 0;; ++round) {
        const uint32_t warps = threads / WARP;
        for (uint32_t turn = 0; turn < warps; ++turn) {
            run_warp(here.fibers + chosen(turn, warps, round) * WARP, round);
            if (here.fault) return;
        }
        if (all_wait(here.fibers, threads, Waits::BLOCK)) {
            release(here.fibers, threads);
            continue;
        }
        for (uint32_t i = 0; i < threads; ++i) {
            if (here.fibers[i].waits != Waits::ENDED) here.fault = DIVERGENT_BARRIER;
        }
        return;
    }
}

bool is_intact(const void* canary) {
    const uint8_t* bytes = static_cast<const uint8_t*>(canary);
    for (uint32_t i = 0; i < CANARY_BYTES; ++i) {
        if (bytes[i] != CANARY) return false;
    }
    return true;
}

Fault launch(const Entry& entry, Dim3 grid, Dim3 block_dim, uint32_t shared_bytes, void** parameters) {
    const uint64_t threads = uint64_t(block_dim.x) * block_dim.y * block_dim.z;
    const bool empty = !grid.x || !grid.y || !grid.z || threads == 0;
    if (empty || threads > entry.threads || threads % WARP != 0) return BAD_SHAPE;
    if (grid.y > 65535 || grid.z > 65535 || shared_bytes > SHARED_MAX) return BAD_SHAPE;
    if (!workspace.reserve(threads)) return OUT_OF_MEMORY;
    Block& here = block();
    here = {};
    here.fibers = workspace.fibers;
    here.shared = workspace.shared;
    here.shared_bytes = shared_bytes;
    here.grid_dim = grid;
    here.block_dim = block_dim;
    here.body = entry.body;
    here.parameters = parameters;
    for (uint32_t i = 0; i < threads; ++i) here.fibers[i].stack = workspace.stacks + i * STACK;
    for (uint32_t z = 0; z < grid.z; ++z) {
        for (uint32_t y = 0; y < grid.y; ++y) {
            for (uint32_t x = 0; x < grid.x; ++x) {
                here.block_index = {x, y, z};
                run_block(threads);
                if (!is_intact(here.shared + shared_bytes)) return SHARED_OVERRUN;
                for (uint32_t i = 0; i < threads; ++i) {
                    if (!is_intact(here.fibers[i].stack)) return STACK_OVERRUN;
                }
                if (here.fault) return here.fault;
            }
        }
    }
    return NONE;
}

}  // namespace

// Notes the barrier for tests, and says whether they want it left out.
bool is_dropped(Site site) {
    for (uint32_t i = 0; i < controls.site_count; ++i) {
        if (controls.sites[i] == site) return site == controls.dropped;
    }
    if (controls.site_count < SITES_MAX) controls.sites[controls.site_count++] = site;
    return site == controls.dropped;
}

void note_read(const void* global, uint32_t bytes) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(global);
    if (first < watch.begin || first + bytes > watch.end) return;
    const uintptr_t origin = watch.begin / Watch::SECTOR;
    for (uintptr_t at = first / Watch::SECTOR; at <= (first + bytes - 1) / Watch::SECTOR; ++at) {
        uint8_t& seen = watch.seen[at - origin];
        watch.sectors += seen ? 0 : 1;
        seen = 1;
    }
}

bool copies_are_early() { return controls.seed % 2 == 1; }

}  // namespace shim

extern "C" int tandem_shim_launch(const char* name, const uint32_t grid[3], const uint32_t block[3],
                                  uint32_t shared_bytes, void** params) {
    const shim::Entry* entry = shim::find(name);
    if (!entry) return shim::UNKNOWN_KERNEL;
    shim::controls.site_count = 0;
    return shim::launch(*entry, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]},
                        shared_bytes, params);
}

extern "C" void tandem_shim_seed(uint32_t seed) { shim::controls.seed = seed; }

extern "C" void tandem_shim_drop(uint32_t site) { shim::controls.dropped = site; }

extern "C" uint32_t tandem_shim_sites(uint32_t* sites, uint32_t room) {
    const uint32_t count = shim::controls.site_count;
    for (uint32_t i = 0; i < count && i < room; ++i) sites[i] = shim::controls.sites[i];
    return count;
}

extern "C" void tandem_shim_watch(const void* begin, uint64_t bytes) {
    shim::watch.set(reinterpret_cast<uintptr_t>(begin), bytes);
}

extern "C" uint64_t tandem_shim_watched() { return shim::watch.sectors * shim::Watch::SECTOR; }

extern "C" uint32_t tandem_shim_parameters(const char* name) {
    const shim::Entry* entry = shim::find(name);
    return entry ? entry->parameters : 0;
}

extern "C" const char* tandem_shim_kernel(uint32_t index) { return shim::name_of(index); }
