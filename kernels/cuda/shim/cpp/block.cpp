// Barriers, collectives and copies of a block.

#include "block.h"

#include <cstring>

namespace shim {

Block& block() {
    static thread_local Block here;
    return here;
}

static void give_way(Waits waits, Site site) {
    Block& here = block();
    Fiber& fiber = *here.running;
    fiber.waits = waits;
    fiber.site = site;
    switch_context(fiber.context, here.scheduler);
}

bool is_dropped(Site site);
bool copies_are_early();

void block_barrier(Site site) {
    if (!is_dropped(site)) give_way(Waits::BLOCK, site);
}

void warp_barrier(Site site) {
    if (!is_dropped(site)) give_way(Waits::WARP, site);
}

void show(const void* from, uint32_t bytes, Site site) {
    Fiber& fiber = *block().running;
    fiber.collectives += 1;
    memcpy(fiber.shown[fiber.collectives % 2], from, bytes);
    give_way(Waits::WARP, site);
}

const void* shown_by(uint32_t lane) {
    Block& here = block();
    const Fiber& self = *here.running;
    return here.fibers[self.index / WARP * WARP + lane].shown[self.collectives % 2];
}

void fail(Fault fault) {
    Block& here = block();
    here.fault = fault;
    Context abandoned;
    switch_context(abandoned, here.scheduler);
    __builtin_unreachable();
}

static void finish_copy(const Copy& copy) {
    if (copy.present) {
        memcpy(copy.to, copy.from, copy.bytes);
    } else {
        memset(copy.to, 0, copy.bytes);
    }
}

void start_copy(void* shared, const void* global, bool present, uint32_t bytes) {
    Fiber& fiber = *block().running;
    const uintptr_t bits = reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global);
    if (bits % bytes != 0) fail(MISALIGNED);
    if (present) note_read(global, bytes);
    if (copies_are_early()) {
        finish_copy({shared, global, present, bytes, 0});
        return;
    }
    if (fiber.copy_count == COPIES_MAX) fail(TOO_MANY_COPIES);
    fiber.copies[fiber.copy_count++] = {shared, global, present, bytes, fiber.groups};
}

void commit_copies() { block().running->groups += 1; }

void wait_copies(uint32_t left) {
    Fiber& fiber = *block().running;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < fiber.copy_count; ++i) {
        const Copy copy = fiber.copies[i];
        if (copy.group + left >= fiber.groups) {
            fiber.copies[kept++] = copy;
        } else {
            finish_copy(copy);
        }
    }
    fiber.copy_count = kept;
}

}  // namespace shim
