// Paged attention with an online softmax, for prefill chunks and decode rows alike.
//
// Knows how some rows of one sequence and one KV head attend to stretches of the sequence. Knows nothing of layers,
// nor of who computes what.
//
// The query heads that share a KV head are rows beside one another, so keys and values are read once for all of them.
// A sequence is cut into stretches of STRETCH positions, counted from its first token. A stretch gives each row a
// part (maximum, weight, weighted values); parts are joined in the order of the stretches. Where the stretches begin,
// and the order of every sum in them, depends on absolute positions alone: a row's bits are the same in a chunk of
// one or of five hundred, and whether its parts are made by one thread or by several.
//
// Online softmax: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; joining parts: Dao et al.,
// "FlashAttention: Fast and memory-efficient exact attention with IO-awareness", NeurIPS 2022.
#pragma once

#include <limits>

#include "cache.h"
#include "matrix.h"

namespace rota {

constexpr int STRETCH = 256;
constexpr int MOST_HEAD_DIM = 256;
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// A sequence's part of a step, and what its layer wants.
struct Sequence {
    const int32_t* table;  // its blocks
    int start;             // position of its first token in this step
    int count;             // tokens in this step
    int first;             // their place in the flat row of the step
};

// What ROWS rows have seen so far: for each its maximum (in units of log2, scaled), weight and weighted values
// [ROWS][head_dim].
struct Seen {
    float most[ROWS];
    float weight[ROWS];
    alignas(64) float values[ROWS * MOST_HEAD_DIM];

    void clear(int head_dim) {
        for (int r = 0; r < ROWS; ++r) most[r] = NOTHING, weight[r] = 0.0f;
        for (int i = 0; i < ROWS * head_dim; i += LANES) store(values + i, set1(0.0f));
    }

    // Row `r` has also seen a part.
    void join(int r, float part_most, float part_weight, const float* part, int head_dim) {
        if (part_most == NOTHING) return;
        float* mine = values + r * head_dim;
        const float both = most[r] > part_most ? most[r] : part_most;
        // Of the two shares one is 1.
        const V shares = exp2(between(set1(part_most - both), 1, LANES, most[r] - both));
        const float my_share = most[r] == NOTHING ? 0.0f : shares[0], their_share = shares[1];
        for (int d = 0; d < head_dim; d += LANES)
            store(mine + d, fma(load(part + d), set1(their_share), load(mine + d) * set1(my_share)));
        weight[r] = weight[r] * my_share + part_weight * their_share;
        most[r] = both;
    }
};

// Runs of ROWS rows that go through the sequence together, stretch by stretch: what one has read the others find in the
// cache.
constexpr int SIDE_BY_SIDE = 8;

// One thread's room to work in.
template <class E>
struct Bench {
    alignas(64) float scores[ROWS][STRETCH];
    alignas(64) E weights[ROWS][STRETCH];
    alignas(64) float part[ROWS * MOST_HEAD_DIM];  // [ROWS][head_dim]
    float most[ROWS];
    float weight[ROWS];
    Seen seen[SIDE_BY_SIDE];
};

// `rows` rows of one sequence and KV head: row r is token (first_row + r) / group of the step's tokens of that
// sequence, and one of its `group` query heads.
template <class E>
struct Rows {
    const E* query;  // [rows][head_dim], readable for ROWS rows
    int rows;
    int first_row;
    int group;
    int head;    // KV head
    int window;  // how many positions back a row sees, itself included; 0: all
    float scale;

    int position(const Sequence& sequence, int r) const { return sequence.start + (first_row + r) / group; }
};

// Where sixteen tokens' keys and values lie.
template <class E>
struct Run {
    const E *keys, *values;
};

// The runs of positions `from` .. `from + tokens - 1`. Beyond the end of the table they are those of the sequence's last
// block, and masked away.
template <class E>
void find_runs(const Pages<E>& pages, const Sequence& sequence, int head, int from, int tokens, Run<E>* runs) {
    const int last = (sequence.start + sequence.count - 1) / pages.block_size;
    int index = from / pages.block_size, offset = from % pages.block_size;
    for (int t = 0; t < tokens; t += LANES) {
        const int block = sequence.table[index < last ? index : last];
        runs[t / LANES] = {pages.keys_at(block, head, offset), pages.values_at(block, head, offset)};
        offset += LANES;
        if (offset == pages.block_size) {
            offset = 0;
            ++index;
        }
    }
}

// Keys into the nearest cache, for they are next; values into the one behind it.
template <class E>
inline void ask_for(const Run<E>& run, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const char*>(run.keys) + i, 0, 3);
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(reinterpret_cast<const char*>(run.values) + i, 0, 2);
}

template <class E>
void scores_by_vectors(const E* query, int rows, int head_dim, const E* keys, float* out) {
    constexpr int MOST = 4;
    for (int r = 0; r < rows; r += MOST) {
        const int now = rows - r < MOST ? rows - r : MOST;
        V found[MOST];
        for (int i = 0; i < MOST; ++i) found[i] = set1(0.0f);
        for (int d = 0; d < head_dim; d += TOGETHER<E>)
            for (int i = 0; i < now; ++i)
                found[i] = product(query + (r + i) * head_dim + d, keys + d * LANES, found[i]);
        for (int i = 0; i < now; ++i) store(out + (r + i) * STRETCH, found[i]);
    }
}

// part += weights x values, over `tokens` tokens (a multiple of LANES) of one tile.
template <class E>
void values_by_vectors(const E* weights, int rows, int tokens, int head_dim, const E* values, float* part) {
    constexpr int T = TOGETHER<E>;
    constexpr int MOST = 4;
    for (int d = 0; d < head_dim; d += LANES) {
        for (int r = 0; r < rows; r += MOST) {
            const int now = rows - r < MOST ? rows - r : MOST;
            V found[MOST];
            for (int i = 0; i < MOST; ++i)
                found[i] = i < now ? load(part + (r + i) * head_dim + d) : set1(0.0f);
            for (int t = 0; t < tokens; t += T)
                for (int i = 0; i < now; ++i)
                    found[i] = product(weights + (r + i) * STRETCH + t, values + (t * head_dim + d * T), found[i]);
            for (int i = 0; i < now; ++i) store(part + (r + i) * head_dim + d, found[i]);
        }
    }
}

#if defined(ROTA_TILES)
// Scores of up to 32 rows with 32 tokens' keys: two runs of sixteen tokens.
inline void scores_by_tiles(const bf16* query, int rows, int head_dim, const bf16* left, const bf16* right,
                            float* out) {
    pair_by_tiles(left, right, head_dim, query, head_dim, rows, out, STRETCH, {});
}

// part = weights x values for a whole stretch, columns `d` .. `d + 31`. Runs of 32 tokens lie together.
template <class Where>
inline void values_by_tiles(const bf16* weights, int rows, int tokens, int head_dim, int d, Where&& values,
                            float* part) {
    constexpr size_t WEIGHT_BYTES = STRETCH * sizeof(bf16);
    const size_t part_bytes = head_dim * sizeof(float);
    const size_t value_bytes = size_t{2} * head_dim * sizeof(bf16);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int t = 0; t < tokens; t += PAIR) {
        const bf16* at = values(t) + 2 * d;
        _tile_loadd(6, at, value_bytes);
        _tile_loadd(7, at + 2 * LANES, value_bytes);
        _tile_loadd(4, weights + t, WEIGHT_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (rows > 16) {
            _tile_loadd(5, weights + 16 * STRETCH + t, WEIGHT_BYTES);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, part + d, part_bytes);
    _tile_stored(1, part + d + LANES, part_bytes);
    if (rows > 16) {
        _tile_stored(2, part + 16 * head_dim + d, part_bytes);
        _tile_stored(3, part + 16 * head_dim + d + LANES, part_bytes);
    }
}
#endif

// Each row's part of stretch `stretch`, into the bench: most, weight, part. `far`: this thread has not read the stretch
// yet. It will probably read `next` next, unless that is null.
template <class E>
void attend_stretch(Unit unit, const Pages<E>& pages, const Sequence& sequence, const Rows<E>& rows, int stretch,
                    bool far, const Run<E>& next, Bench<E>& bench) {
    const int head_dim = pages.head_dim;
    const int from = stretch * STRETCH;
    const int last = rows.position(sequence, rows.rows - 1);
    // Tokens of the stretch that some row sees, to whole runs of 32. What lies beyond a row's own position is masked.
    const int seen = last + 1 - from < STRETCH ? last + 1 - from : STRETCH;
    const int tokens = (seen + PAIR - 1) / PAIR * PAIR;
    int skipped = 0;
    if (rows.window > 0) {
        const int first_seen = rows.position(sequence, 0) - rows.window + 1 - from;
        if (first_seen > 0) skipped = first_seen / PAIR * PAIR;
    }
    Run<E> runs[STRETCH / LANES];
    find_runs(pages, sequence, rows.head, from, tokens, runs);
    // Few rows do little with what they read: it must be on its way before it is wanted.
    const size_t run_bytes = size_t{PAIR} * head_dim * sizeof(E);
    for (int t = skipped; t < tokens; t += PAIR) {
        const Run<E>& left = runs[t / LANES];
        const Run<E>& right = runs[t / LANES + 1];
        if (far && t + PAIR < tokens) ask_for(runs[(t + PAIR) / LANES], run_bytes);
#if defined(ROTA_TILES)
        if constexpr (sizeof(E) == 2) {
            if (unit == Unit::TILES) {
                scores_by_tiles(rows.query, rows.rows, head_dim, left.keys, right.keys, bench.scores[0] + t);
                continue;
            }
        }
#endif
        (void)unit;
        scores_by_vectors(rows.query, rows.rows, head_dim, left.keys, bench.scores[0] + t);
        scores_by_vectors(rows.query, rows.rows, head_dim, right.keys, bench.scores[0] + t + LANES);
    }
    if (far && next.keys != nullptr) ask_for(next, run_bytes);
    const float scale = rows.scale * LOG2_E;
    for (int r = 0; r < rows.rows; ++r) {
        const int position = rows.position(sequence, r);
        const int end = position + 1 - from;  // may be beyond the stretch, or before it
        const int begin = rows.window > 0 ? position - rows.window + 1 - from : 0;
        float* scores = bench.scores[r];
        V most = set1(NOTHING);
        for (int t = skipped; t < tokens; t += LANES) {
            V score = load(scores + t);
            if (t < begin || t + LANES > end) {
                score = between(score, begin - t, end - t, NOTHING);
                store(scores + t, score);
            }
            most = max(most, score);
        }
        bench.most[r] = maximum(most) * scale;
        // A row that sees nothing here has a weight of 0 everywhere, instead of NaN.
        const V top = set1(bench.most[r] == NOTHING ? 0.0f : -bench.most[r]);
        V total = set1(0.0f);
        for (int t = skipped; t < tokens; t += LANES) {
            const V weight = exp2<sizeof(E) == 4>(fma(load(scores + t), set1(scale), top));
            total = total + weight;
            narrowed(bench.weights[r] + t, weight);
        }
        bench.weight[r] = sum(total);
    }
#if defined(ROTA_TILES)
    if constexpr (sizeof(E) == 2) {
        if (unit == Unit::TILES) {
            auto values = [&](int t) { return runs[(skipped + t) / LANES].values; };
            for (int d = 0; d < head_dim; d += PAIR)
                values_by_tiles(bench.weights[0] + skipped, rows.rows, tokens - skipped, head_dim, d, values,
                                bench.part);
            return;
        }
    }
#endif
    for (int i = 0; i < rows.rows * head_dim; i += LANES) store(bench.part + i, set1(0.0f));
    for (int t = skipped; t < tokens; t += LANES)
        values_by_vectors(bench.weights[0] + t, rows.rows, LANES, head_dim, runs[t / LANES].values, bench.part);
}

}  // namespace rota
