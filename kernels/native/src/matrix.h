// Weights packed once, and their products with the rows of a step.
//
// Knows one matrix product: up to ROWS rows times two panels of sixteen columns, over the whole of K, first to last.
// Knows nothing of what the rows are. K is never divided, and a row's sum never sees another row's, so the bits of a
// row are the same in any company.
//
// A packed matrix is panels of LANES columns; within a panel K runs first to last in groups of TOGETHER elements:
// [panel][K / TOGETHER][LANES][TOGETHER]. For bf16 that is at the same time what a tile of AMX holds (sixteen pairs of
// K by sixteen columns, one KiB) and what a vector of AVX-512 BF16 does. Columns are padded with zeros to pairs of
// panels.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include <sys/mman.h>

#include "simd.h"

namespace rota {

constexpr int ROWS = 32;
constexpr int PAIR = 2 * LANES;

// How products are made.
enum class Unit : int { VECTORS = 0, TILES = 1 };

// Memory on huge pages where the system has them: weights are read from end to end in every step.
template <class T>
class Block {
   public:
    explicit Block(size_t count = 0) { resize(count); }
    ~Block() { std::free(data_); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    Block(Block&& other) noexcept : data_(other.data_), count_(other.count_) {
        other.data_ = nullptr;
        other.count_ = 0;
    }

    // What was there is lost.
    void resize(size_t count) {
        if (count <= count_) return;
        std::free(data_);
        data_ = nullptr;
        count_ = 0;
        constexpr size_t HUGE_PAGE = size_t{1} << 21;
        const size_t bytes = count * sizeof(T);
        const size_t unit = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
        const size_t whole = (bytes + unit - 1) / unit * unit;
        data_ = static_cast<T*>(std::aligned_alloc(unit, whole));
        if (data_ == nullptr) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
        if (unit == HUGE_PAGE) madvise(data_, whole, MADV_HUGEPAGE);
#endif
        std::memset(static_cast<void*>(data_), 0, whole);
        count_ = count;
    }

    T* get() { return data_; }
    const T* get() const { return data_; }
    size_t count() const { return count_; }

   private:
    T* data_ = nullptr;
    size_t count_ = 0;
};

template <class E>
struct Matrix {
    int k = 0;
    int pairs = 0;
    Block<E> packed;

    void shape(int columns, int rows) {
        k = rows;
        pairs = (columns + PAIR - 1) / PAIR;
        packed.resize(size_t{1} * pairs * PAIR * k);
    }

    // Column `column` becomes `weight` [K].
    void put(int column, const E* weight) {
        constexpr int T = TOGETHER<E>;
        E* to = packed.get() + size_t{1} * (column / LANES) * LANES * k + column % LANES * T;
        for (int i = 0; i < k; i += T) std::memcpy(to + size_t{1} * i * LANES, weight + i, T * sizeof(E));
    }

    const E* panel(int index) const { return packed.get() + size_t{1} * index * LANES * k; }
};

template <class E, int R>
inline void rows_times_pair(const E* left, const E* right, int k, const E* a, size_t a_stride, float* out,
                            size_t out_stride) {
    V low[R], high[R];
    for (int r = 0; r < R; ++r) low[r] = high[r] = set1(0.0f);
    constexpr int T = TOGETHER<E>;
    for (int i = 0; i < k; i += T) {
        for (int r = 0; r < R; ++r) {
            low[r] = product(a + r * a_stride + i, left + size_t{1} * i * LANES, low[r]);
            high[r] = product(a + r * a_stride + i, right + size_t{1} * i * LANES, high[r]);
        }
    }
    for (int r = 0; r < R; ++r) {
        store(out + r * out_stride, low[r]);
        store(out + r * out_stride + LANES, high[r]);
    }
}

template <class E>
void pair_by_vectors(const E* left, const E* right, int k, const E* a, size_t a_stride, int rows, float* out,
                     size_t out_stride) {
    constexpr int MOST = 6;
    while (rows > 0) {
        const int now = rows < MOST ? rows : MOST;
        switch (now) {
            case 1: rows_times_pair<E, 1>(left, right, k, a, a_stride, out, out_stride); break;
            case 2: rows_times_pair<E, 2>(left, right, k, a, a_stride, out, out_stride); break;
            case 3: rows_times_pair<E, 3>(left, right, k, a, a_stride, out, out_stride); break;
            case 4: rows_times_pair<E, 4>(left, right, k, a, a_stride, out, out_stride); break;
            case 5: rows_times_pair<E, 5>(left, right, k, a, a_stride, out, out_stride); break;
            default: rows_times_pair<E, MOST>(left, right, k, a, a_stride, out, out_stride); break;
        }
        rows -= now;
        a += now * a_stride;
        out += now * out_stride;
    }
}

// Weights that come from far away, asked for before they are wanted: two runs of memory side by side, `bytes` of each.
struct Ask {
    const void *left = nullptr, *right = nullptr;
    size_t bytes = 0;
    bool soon = false;  // into the nearest cache, else into the one behind it
};

#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
#define ROTA_TILES 1

// Asks for a share of it in each of a product's steps.
class Asking {
   public:
    Asking(const Ask& ask, int steps)
        : left_(static_cast<const char*>(ask.left)),
          right_(static_cast<const char*>(ask.right)),
          lines_(static_cast<int>((ask.bytes / 64 + steps - 1) / steps)),
          soon_(ask.soon) {}

    void some() {
        if (soon_) {
            for (int i = 0; i < lines_; ++i, left_ += 64, right_ += 64) {
                _mm_prefetch(left_, _MM_HINT_T0);
                _mm_prefetch(right_, _MM_HINT_T0);
            }
        } else {
            for (int i = 0; i < lines_; ++i, left_ += 64, right_ += 64) {
                _mm_prefetch(left_, _MM_HINT_T1);
                _mm_prefetch(right_, _MM_HINT_T1);
            }
        }
    }

   private:
    const char *left_, *right_;
    const int lines_;
    const bool soon_;
};

// Tiles of 64 bytes a row. Where no product of a phase has more than `rows` rows, its left-hand sides and results (tiles 0
// to 5) need no more either, which is sooner done; above that they are whole, and a product computes rows that nobody
// looks at. What comes out of a row is the same.
inline void configure_tiles(int rows) {
    const uint8_t some = static_cast<uint8_t>(rows < LANES ? rows : LANES);
    struct alignas(64) {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {};
    } wanted;
    for (int tile = 0; tile < 8; ++tile) wanted.rows[tile] = tile < 6 ? some : LANES;
    _tile_loadconfig(&wanted);
}

inline void release_tiles() { _tile_release(); }

// `a` must be readable for as many rows as the tiles have, and `out` writable. `ask`: what to have fetched meanwhile.
inline void pair_by_tiles(const bf16* left, const bf16* right, int k, const bf16* a, size_t a_stride, int rows,
                          float* out, size_t out_stride, const Ask& ask) {
    constexpr int DEPTH = 32;
    constexpr size_t TILE = size_t{DEPTH} * LANES;
    const size_t a_bytes = a_stride * sizeof(bf16), out_bytes = out_stride * sizeof(float);
    const int steps = k / DEPTH;
    Asking asking(ask, steps);
    _tile_zero(0);
    _tile_zero(1);
    if (rows > 16) {
        _tile_zero(2);
        _tile_zero(3);
        const bf16* below = a + 16 * a_stride;
        for (int i = 0; i < steps; ++i) {
            asking.some();
            _tile_loadd(6, left + i * TILE, 64);
            _tile_loadd(4, a + i * DEPTH, a_bytes);
            _tile_loadd(7, right + i * TILE, 64);
            _tile_loadd(5, below + i * DEPTH, a_bytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, out + 16 * out_stride, out_bytes);
        _tile_stored(3, out + 16 * out_stride + LANES, out_bytes);
    } else {
        for (int i = 0; i < steps; ++i) {
            asking.some();
            _tile_loadd(4, a + i * DEPTH, a_bytes);
            _tile_loadd(6, left + i * TILE, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, right + i * TILE, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
    }
    _tile_stored(0, out, out_bytes);
    _tile_stored(1, out + LANES, out_bytes);
}
#else
inline void configure_tiles(int) {}
inline void release_tiles() {}
#endif

// What to ask for while the `block`-th of `blocks` runs of rows meets panel pair `pair`. With one run only, the pair's own
// weights of two tiles further on: the processor's own guess comes too late (31 against 23 GB/s on two cores). With more,
// each run a share of the next pair, which a thread mostly goes on with.
template <class E>
Ask ask_beside(const Matrix<E>& weights, int pair, int block, int blocks) {
    const char* left = reinterpret_cast<const char*>(weights.panel(2 * pair));
    const size_t panel = size_t{1} * LANES * weights.k * sizeof(E);
    if (blocks == 1) return {left + 2048, left + panel + 2048, panel, true};
    if (pair + 1 == weights.pairs) return {};
    const size_t begin = panel * block / blocks / 64 * 64, end = panel * (block + 1) / blocks / 64 * 64;
    return {left + 2 * panel + begin, left + 3 * panel + begin, end - begin, false};
}

// `rows` rows (at most ROWS) of `a` times panel pair `pair`: out [ROWS][out_stride], PAIR columns of it.
template <class E>
void times_pair(Unit unit, const Matrix<E>& weights, int pair, const E* a, size_t a_stride, int rows, float* out,
                size_t out_stride, const Ask& ask) {
    const E* left = weights.panel(2 * pair);
    const E* right = weights.panel(2 * pair + 1);
#if defined(ROTA_TILES)
    if constexpr (sizeof(E) == 2) {
        if (unit == Unit::TILES)
            return pair_by_tiles(left, right, weights.k, a, a_stride, rows, out, out_stride, ask);
    }
#endif
    (void)unit;
    (void)ask;
    pair_by_vectors(left, right, weights.k, a, a_stride, rows, out, out_stride);
}

}  // namespace rota
