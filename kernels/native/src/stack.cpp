// The C interface of the CPU kernels, for ctypes.
//
// Knows how errors get across: a function that can fail returns 0, or nothing where it should return something, and
// `rota_why` says why in a sentence. Knows nothing of layers.

#include "stack.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

thread_local std::string why;

template <class Work>
bool tried(Work&& work) {
    try {
        work();
        return true;
    } catch (const std::bad_alloc&) {
        why = "there is not enough memory";
    } catch (const std::exception& error) {
        why = error.what();
    }
    return false;
}

// Linux gives tiles to those who ask: https://docs.kernel.org/arch/x86/xstate.html
bool tiles_allowed() {
#if defined(ROTA_TILES) && defined(__linux__)
    constexpr long ASK = 0x1023, TILE_DATA = 18;
    return __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
#else
    return false;
#endif
}

}  // namespace

extern "C" {

const char* rota_why() { return why.c_str(); }

// Which products this build and this processor can make of bf16: 0 vectors without bf16, 1 vectors with it, 2 tiles.
int32_t rota_best() {
    if (tiles_allowed()) return 2;
#if defined(__AVX512BF16__)
    return 1;
#else
    return 0;
#endif
}

void* rota_new(const rota::Shape* shape, int32_t element_bytes) {
    void* made = nullptr;
    tried([&] {
        rota::AnyStack* stack = nullptr;
        if (element_bytes == 4)
            stack = new rota::Stack<float>(*shape);
        else
            stack = new rota::Stack<rota::bf16>(*shape);
        made = stack;
    });
    return made;
}

void rota_free(void* stack) { delete static_cast<rota::AnyStack*>(stack); }

int32_t rota_set_layer(void* stack, int32_t layer, const rota::LayerWeights* weights) {
    return tried([&] { static_cast<rota::AnyStack*>(stack)->set_layer(layer, *weights); });
}

int32_t rota_set_ends(void* stack, const void* embedding, const void* norm, const void* head, const float* cosines,
                      const float* sines) {
    return tried([&] { static_cast<rota::AnyStack*>(stack)->set_ends(embedding, norm, head, cosines, sines); });
}

void rota_set_pages(void* stack, int32_t layer, void* tiles) {
    static_cast<rota::AnyStack*>(stack)->set_pages(layer, tiles);
}

int64_t rota_bytes(void* stack) { return static_cast<rota::AnyStack*>(stack)->bytes(); }

int32_t rota_run(void* stack, const rota::Step* step) {
    return tried([&] { static_cast<rota::AnyStack*>(stack)->run(*step); });
}

}  // extern "C"
