// The context switch: a few instructions on x86-64, the C library's elsewhere (which is slower, as it
// saves the signal mask by a system call).

#include "fiber.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && !defined(SHIM_PORTABLE_FIBERS)

// Saves what a function must preserve, changes stacks, and restores the same from the other one.
asm(R"(
    .text
    .globl tandem_shim_switch
    .hidden tandem_shim_switch
    .type tandem_shim_switch, @function
tandem_shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size tandem_shim_switch, .-tandem_shim_switch
    .section .note.GNU-stack, "", @progbits
    .text
)");

extern "C" void tandem_shim_switch(void** from, void* to);

namespace shim {

void switch_context(Context& from, Context& to) { tandem_shim_switch(&from.state, to.state); }

void prepare_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
    uintptr_t top = reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t(15);
    void** at = reinterpret_cast<void**>(top);
    // A function begins with the stack 8 off a multiple of 16, above it its return address.
    *--at = nullptr;
    *--at = reinterpret_cast<void*>(entry);
    for (int preserved = 0; preserved < 6; ++preserved) *--at = nullptr;
    context.state = at;
}

}  // namespace shim

#else

#include <ucontext.h>

namespace shim {

void switch_context(Context& from, Context& to) {
    ucontext_t here;
    from.state = &here;
    swapcontext(&here, static_cast<ucontext_t*>(to.state));
}

void prepare_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
    // The context itself lies at the low end of the stack, behind the canary.
    ucontext_t* begin = reinterpret_cast<ucontext_t*>(stack + 64);
    getcontext(begin);
    begin->uc_stack.ss_sp = stack + 64 + sizeof(ucontext_t);
    begin->uc_stack.ss_size = bytes - 64 - sizeof(ucontext_t);
    begin->uc_link = nullptr;
    makecontext(begin, entry, 0);
    context.state = begin;
}

}  // namespace shim

#endif
