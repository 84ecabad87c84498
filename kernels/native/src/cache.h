// The paged cache as the products of attention want it.
//
// Knows where a token's key and value lie. Knows nothing of sequences.
//
// One layer's cache is [blocks][kv_heads] pairs of tiles of block_size tokens: keys, and behind them the values. Inside
// a tile both are stored as the right-hand side of a product, so that nothing is gathered or turned round when they are
// read:
//   keys    [block_size / LANES][head_dim / TOGETHER][LANES tokens][TOGETHER]    (a column a token)
//   values  [block_size / TOGETHER][head_dim][TOGETHER tokens]                   (a row a token)
#pragma once

#include "simd.h"

namespace rota {

template <class E>
struct Pages {
    E* tiles = nullptr;
    int block_size = 0, kv_heads = 0, head_dim = 0;

    // Elements of one tile.
    size_t tile() const { return size_t{1} * block_size * head_dim; }

    E* keys(int block, int head) const { return tiles + 2 * tile() * (size_t{1} * block * kv_heads + head); }

    E* values(int block, int head) const { return keys(block, head) + tile(); }

    // Where sixteen tokens' keys begin, from token `offset` of the block on.
    const E* keys_at(int block, int head, int offset) const {
        return keys(block, head) + size_t{1} * offset * head_dim;
    }

    const E* values_at(int block, int head, int offset) const {
        return values(block, head) + size_t{1} * offset * head_dim;
    }

    void write_key(int block, int head, int offset, const float* key) {
        constexpr int T = TOGETHER<E>;
        E* at = keys(block, head) + size_t{1} * (offset / LANES) * LANES * head_dim + offset % LANES * T;
        E row[LANES];
        for (int d = 0; d < head_dim; d += LANES) {
            narrowed(row, finite(load(key + d)));
            for (int i = 0; i < LANES; i += T) std::memcpy(at + (d + i) * LANES, row + i, T * sizeof(E));
        }
    }

    void write_value(int block, int head, int offset, const float* value) {
        constexpr int T = TOGETHER<E>;
        E* at = values(block, head) + size_t{1} * (offset / T) * T * head_dim + offset % T;
        E row[LANES];
        for (int d = 0; d < head_dim; d += LANES) {
            narrowed(row, finite(load(value + d)));
            for (int i = 0; i < LANES; ++i) at[(d + i) * T] = row[i];
        }
    }

   private:
    // What is masked away still takes part as 0 x value, and 0 x infinity is not 0: one request's overflow must not
    // reach whoever gets its blocks next.
    static V finite(V v) {
        constexpr float MOST = 3.3e38f;
        return max(min(v, set1(MOST)), set1(-MOST));
    }
};

}  // namespace rota
