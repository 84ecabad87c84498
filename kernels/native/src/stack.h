// A whole decoder: embedding, layers, head. One call a step.
//
// Knows the order of what happens in a step, and which thread may do what at the same time. Knows decoders of one
// kind: RMS norm, rotary positions over the whole head, grouped queries with or without biases and norms of their own,
// SiLU-gated products. Knows nothing of requests, nor who owns a block.
//
// What is between layers stays in float32; what is multiplied is rounded to the weights' format once, when written.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>

#include "attention.h"
#include "draw.h"
#include "threads.h"

namespace rota {

struct Shape {
    int32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary, positions, block_size, threads, unit;
    float epsilon, scale;
};

// Pointers to contiguous tensors of one layer in the weights' format; null: the layer has none.
struct LayerWeights {
    const void *query, *key, *value, *out, *gate, *up, *down;  // [out_features, in_features]
    const void *query_bias, *key_bias, *value_bias, *out_bias;
    const void *attention_norm, *mlp_norm, *query_norm, *key_norm;
    int32_t window;
};

struct Step {
    int32_t tokens, sequences, kept, told, drawn;
    const int32_t *ids, *positions;          // [tokens]
    const int32_t *starts, *counts;          // [sequences]
    const int32_t *tables, *table_begins;    // all tables one after another; [sequences + 1]
    const int32_t* keep;                     // [kept] flat rows that want an answer
    const Wish* wishes;                      // [drawn]
    float* logits;                           // [told + drawn, vocabulary]: of the first of them
    int32_t* chosen;                         // [kept - told]: the drawn tokens, then the likeliest of each of the others
};

class AnyStack {
   public:
    virtual ~AnyStack() = default;
    virtual void set_layer(int layer, const LayerWeights& weights) = 0;
    virtual void set_ends(const void* embedding, const void* norm, const void* head, const float* cosines,
                          const float* sines) = 0;
    virtual void set_pages(int layer, void* tiles) = 0;
    virtual void run(const Step& step) = 0;
    virtual int64_t bytes() const = 0;
};

template <class E>
class Stack final : public AnyStack {
   public:
    explicit Stack(const Shape& shape)
        : shape_(shape),
          unit_(static_cast<Unit>(shape.unit)),
          group_(shape.heads / shape.kv_heads),
          team_(shape.threads),
          layers_(shape.layers),
          benches_(team_.size()),
          draws_(team_.size()) {}

    void set_layer(int index, const LayerWeights& from) override {
        Layer& to = layers_[index];
        const int hidden = shape_.hidden, width = shape_.heads * shape_.head_dim;
        const int kv_width = shape_.kv_heads * shape_.head_dim;
        to.project.shape(width + 2 * kv_width, hidden);
        put(to.project, 0, 1, from.query, width);
        put(to.project, width, 1, from.key, kv_width);
        put(to.project, width + kv_width, 1, from.value, kv_width);
        if (from.query_bias != nullptr) {
            to.project_bias.resize(width + 2 * kv_width);
            wide(to.project_bias.get(), from.query_bias, width);
            wide(to.project_bias.get() + width, from.key_bias, kv_width);
            wide(to.project_bias.get() + width + kv_width, from.value_bias, kv_width);
        }
        to.out.shape(hidden, width);
        put(to.out, 0, 1, from.out, hidden);
        if (from.out_bias != nullptr) {
            to.out_bias.resize(to.out.pairs * PAIR);
            wide(to.out_bias.get(), from.out_bias, hidden);
        }
        // Sixteen columns of gate, then the sixteen of up that they are multiplied with.
        to.gate_up.shape(2 * shape_.intermediate, hidden);
        for (int i = 0; i < shape_.intermediate; ++i) {
            const int column = i / LANES * PAIR + i % LANES;
            to.gate_up.put(column, static_cast<const E*>(from.gate) + size_t{1} * i * hidden);
            to.gate_up.put(column + LANES, static_cast<const E*>(from.up) + size_t{1} * i * hidden);
        }
        to.down.shape(hidden, shape_.intermediate);
        put(to.down, 0, 1, from.down, hidden);
        norm(to.attention_norm, from.attention_norm, hidden);
        norm(to.mlp_norm, from.mlp_norm, hidden);
        norm(to.query_norm, from.query_norm, shape_.head_dim);
        norm(to.key_norm, from.key_norm, shape_.head_dim);
        to.window = from.window;
    }

    // `embedding`, `cosines` and `sines` [positions, head_dim / 2] are read where they lie, for as long as this lives.
    void set_ends(const void* embedding, const void* norm_weight, const void* head, const float* cosines,
                  const float* sines) override {
        embedding_ = static_cast<const E*>(embedding);
        norm(norm_, norm_weight, shape_.hidden);
        head_.shape(shape_.vocabulary, shape_.hidden);
        put(head_, 0, 1, head, shape_.vocabulary);
        cosines_ = cosines;
        sines_ = sines;
    }

    void set_pages(int layer, void* tiles) override {
        layers_[layer].pages = {static_cast<E*>(tiles), shape_.block_size, shape_.kv_heads, shape_.head_dim};
    }

    int64_t bytes() const override {
        size_t elements = head_.packed.count();
        for (const Layer& it : layers_)
            elements += it.project.packed.count() + it.out.packed.count() + it.gate_up.packed.count() +
                        it.down.packed.count();
        return static_cast<int64_t>(elements * sizeof(E));
    }

    void run(const Step& step) override {
        prepare(step);
        team_.run([&](int thread) { live(step, thread); });
    }

   private:
    struct Layer {
        Matrix<E> project, out, gate_up, down;
        Block<float> project_bias, out_bias, attention_norm, mlp_norm, query_norm, key_norm;
        Pages<E> pages;
        int window = 0;
    };

    // Some rows of one sequence and KV head, and the stretches of the sequence they attend to.
    struct Item {
        int sequence, head, first_row, rows;
        int begin, end;   // stretches
        int64_t part;     // where its parts go; -1: it sees all of its stretches, and no one joins them
    };

    // Rows whose parts several items made.
    struct Joint {
        int item, items;  // the first of them, and how many
    };

    // -- packing

    void put(Matrix<E>& matrix, int column, int step, const void* weight, int columns) {
        for (int i = 0; i < columns; ++i)
            matrix.put(column + i * step, static_cast<const E*>(weight) + size_t{1} * i * matrix.k);
    }

    static void wide(float* to, const void* from, int count) {
        if (from == nullptr) return;
        for (int i = 0; i < count; ++i) to[i] = widen(static_cast<const E*>(from)[i]);
    }

    static void norm(Block<float>& to, const void* from, int count) {
        if (from == nullptr) return;
        to.resize(count);
        wide(to.get(), from, count);
    }

    // -- a step

    void prepare(const Step& step) {
        const size_t rows = size_t{1} * (step.tokens + ROWS - 1) / ROWS * ROWS + ROWS;
        const int width = shape_.heads * shape_.head_dim;
        residual_.resize(rows * shape_.hidden);
        normed_.resize(rows * shape_.hidden);
        query_.resize((size_t{1} * step.tokens * shape_.heads + ROWS) * shape_.head_dim);
        attended_.resize(rows * width);
        gated_.resize(rows * shape_.intermediate);
        candidates_.resize(size_t{1} * step.kept * head_.pairs);
        sequences_.clear();
        int first = 0;
        sequence_of_.resize(step.tokens);
        for (int i = 0; i < step.sequences; ++i) {
            sequences_.push_back({step.tables + step.table_begins[i], step.starts[i], step.counts[i], first});
            for (int t = 0; t < step.counts[i]; ++t) sequence_of_[first + t] = i;
            first += step.counts[i];
        }
        // Seven phases of a layer share work out, attention twice; and four at the ends.
        counters_ = std::vector<Counter>(8 * (shape_.layers + 1));
        // Layers with a window see fewer stretches: their items are listed apart.
        plans_.clear();
        for (const Layer& it : layers_)
            if (std::none_of(plans_.begin(), plans_.end(), [&](const Plan& p) { return p.window == it.window; }))
                plans_.push_back(plan(it.window));
        size_t parts = 0;
        for (const Plan& it : plans_) parts = std::max(parts, it.parts);
        parts_.resize(parts * (shape_.head_dim + LANES));
    }

    struct Plan {
        int window;
        std::vector<Item> items;
        std::vector<Joint> joints;
        size_t parts;   // rows x stretches that wait to be joined
        int most_rows;  // of an item
    };

    Plan plan(int window) const {
        Plan made{window, {}, {}, 0, 0};
        // In runs of rows times stretches. Whoever would keep one thread busy while the others wait is divided: first
        // into fewer rows side by side, then into stretches.
        int64_t all = 0, runs = 0;
        for (const Sequence& it : sequences_) {
            const int64_t mine = (it.count * group_ + ROWS - 1) / ROWS * shape_.kv_heads;
            runs += mine;
            all += mine * ((it.start + it.count + STRETCH - 1) / STRETCH);
        }
        const int64_t fair = team_.size() == 1 ? all : std::max<int64_t>(1, all / (4 * team_.size()));
        const int together =
            ROWS * static_cast<int>(std::clamp<int64_t>(runs / (4 * team_.size()), 1, SIDE_BY_SIDE));
        for (int s = 0; s < static_cast<int>(sequences_.size()); ++s) {
            const Sequence& it = sequences_[s];
            const int rows = it.count * group_;
            made.most_rows = std::max(made.most_rows, std::min(ROWS, rows));
            // The last rows see most: they are begun first, so that no long item is left for the end.
            for (int row = (rows - 1) / together * together; row >= 0; row -= together) {
                const int now = std::min(together, rows - row);
                const int last = it.start + (row + now - 1) / group_;
                const int begin = window > 0 ? std::max(0, it.start + row / group_ - window + 1) / STRETCH : 0;
                const int end = last / STRETCH + 1;
                for (int head = 0; head < shape_.kv_heads; ++head) {
                    const int64_t size = int64_t{1} * ((now + ROWS - 1) / ROWS) * (end - begin);
                    const int pieces = static_cast<int>(std::min<int64_t>(end - begin, (size + fair - 1) / fair));
                    if (pieces <= 1) {
                        made.items.push_back({s, head, row, now, begin, end, -1});
                        continue;
                    }
                    made.joints.push_back({static_cast<int>(made.items.size()), pieces});
                    for (int piece = 0; piece < pieces; ++piece) {
                        const int from = begin + (end - begin) * piece / pieces;
                        const int to = begin + (end - begin) * (piece + 1) / pieces;
                        made.items.push_back({s, head, row, now, from, to, static_cast<int64_t>(made.parts)});
                        made.parts += size_t{1} * now * (to - from);
                    }
                }
            }
        }
        return made;
    }

    void live(const Step& step, int thread) {
        const NoDenormals here;
        configure(step.tokens);
        Counter* counter = counters_.data();
        Bench<E>& bench = benches_[thread];
        share(*counter++, step.tokens, 8, [&](int row) { embed(step, row); });
        team_.barrier();
        for (Layer& layer : layers_) {
            normalise(*counter++, step.tokens, layer.attention_norm.get());
            team_.barrier();
            project(*counter++, step, layer, bench);
            team_.barrier();
            attend(counter, layer, bench);
            counter += 2;
            configure(step.tokens);
            team_.barrier();
            multiply(*counter++, layer.out, attended_.get(), step.tokens, bench,
                     [&](int row, int rows, int pair, const float* found) {
                         add(row, rows, pair, found, layer.out_bias.count() ? layer.out_bias.get() : nullptr);
                     });
            team_.barrier();
            normalise(*counter++, step.tokens, layer.mlp_norm.get());
            team_.barrier();
            multiply(*counter++, layer.gate_up, normed_.get(), step.tokens, bench,
                     [&](int row, int rows, int pair, const float* found) { gate(row, rows, pair, found); });
            team_.barrier();
            multiply(*counter++, layer.down, gated_.get(), step.tokens, bench,
                     [&](int row, int rows, int pair, const float* found) { add(row, rows, pair, found, nullptr); });
            team_.barrier();
        }
        if (step.kept > 0) {
            share(*counter++, step.kept, 8, [&](int i) { normalise_row(step.keep[i], i, norm_.get()); });
            team_.barrier();
            multiply(*counter++, head_, normed_.get(), step.kept, bench,
                     [&](int row, int rows, int pair, const float* found) { tell(step, row, rows, pair, found); });
            team_.barrier();
            share(*counter++, step.kept - step.told, 1, [&](int i) {
                const int row = step.told + i;
                step.chosen[i] = i < step.drawn ? draws_[thread].from(step.logits + size_t{1} * row * shape_.vocabulary,
                                                                      shape_.vocabulary, step.wishes[i])
                                                : likeliest(row);
            });
        }
        if (unit_ == Unit::TILES) release_tiles();
    }

    void configure(int rows) const {
        if (unit_ == Unit::TILES) configure_tiles(rows);
    }

    // `work(i)` for every i below `count`, `some` at a time.
    template <class Work>
    static void share(Counter& counter, int count, int some, Work&& work) {
        for (int first, end; counter.take(count, some, first, end);)
            for (int i = first; i < end; ++i) work(i);
    }

    // The same in runs of neighbours that grow shorter.
    template <class Work>
    void share_guided(Counter& counter, int count, Work&& work) const {
        for (int first, end; counter.take_guided(count, team_.size(), first, end);)
            for (int i = first; i < end; ++i) work(i);
    }

    void embed(const Step& step, int row) {
        const E* from = embedding_ + size_t{1} * step.ids[row] * shape_.hidden;
        float* to = residual_.get() + size_t{1} * row * shape_.hidden;
        for (int i = 0; i < shape_.hidden; i += LANES) store(to + i, widened(from + i));
    }

    void normalise(Counter& counter, int rows, const float* weight) {
        share(counter, rows, 4, [&](int row) { normalise_row(row, row, weight); });
    }

    void normalise_row(int row, int to_row, const float* weight) {
        const float* from = residual_.get() + size_t{1} * row * shape_.hidden;
        E* to = normed_.get() + size_t{1} * to_row * shape_.hidden;
        const V factor = set1(inverse_root(from, shape_.hidden));
        for (int i = 0; i < shape_.hidden; i += LANES) narrowed(to + i, load(from + i) * factor * load(weight + i));
    }

    float inverse_root(const float* x, int count) const {
        V squares = set1(0.0f);
        for (int i = 0; i < count; i += LANES) squares = fma(load(x + i), load(x + i), squares);
        return 1.0f / std::sqrt(sum(squares) / static_cast<float>(count) + shape_.epsilon);
    }

    // How many rows a thread goes through with one panel pair before it takes the next: what they are stays in its
    // second cache.
    static int rows_together(int k) {
        constexpr size_t CACHE = 600 << 10;
        return std::clamp(static_cast<int>(CACHE / (k * sizeof(E))) / ROWS * ROWS, 2 * ROWS, 16 * ROWS);
    }

    template <class Done>
    void multiply(Counter& counter, const Matrix<E>& weights, const E* rows, int count, Bench<E>& bench, Done&& done) {
        const int together = rows_together(weights.k);
        share_guided(counter, (count + together - 1) / together * weights.pairs, [&](int item) {
            const int pair = item % weights.pairs;
            const int first = item / weights.pairs * together, end = std::min(count, first + together);
            const int blocks = (end - first + ROWS - 1) / ROWS;
            for (int block = 0, row = first; row < end; ++block, row += ROWS) {
                const int now = std::min(ROWS, end - row);
                times_pair(unit_, weights, pair, rows + size_t{1} * row * weights.k, weights.k, now,
                           bench.scores[0], PAIR, ask_beside(weights, pair, block, blocks));
                done(row, now, pair, bench.scores[0]);
            }
        });
    }

    void add(int row, int rows, int pair, const float* found, const float* bias) {
        const int columns = std::min(PAIR, shape_.hidden - pair * PAIR);
        for (int r = 0; r < rows; ++r) {
            float* to = residual_.get() + size_t{1} * (row + r) * shape_.hidden + pair * PAIR;
            for (int i = 0; i < columns; i += LANES) {
                V more = load(found + r * PAIR + i);
                if (bias != nullptr) more = more + load(bias + pair * PAIR + i);
                store(to + i, load(to + i) + more);
            }
        }
    }

    void gate(int row, int rows, int pair, const float* found) {
        for (int r = 0; r < rows; ++r) {
            E* to = gated_.get() + size_t{1} * (row + r) * shape_.intermediate + pair * LANES;
            narrowed(to, silu<sizeof(E) == 4>(load(found + r * PAIR)) * load(found + r * PAIR + LANES));
        }
    }

    void tell(const Step& step, int row, int rows, int pair, const float* found) {
        const int columns = std::min(PAIR, shape_.vocabulary - pair * PAIR);
        for (int r = 0; r < rows; ++r) {
            const float* mine = found + r * PAIR;
            if (row + r < step.told + step.drawn)
                std::memcpy(step.logits + size_t{1} * (row + r) * shape_.vocabulary + pair * PAIR, mine,
                            columns * sizeof(float));
            else
                candidates_.get()[size_t{1} * (row + r) * head_.pairs + pair] = best_of(mine, columns, pair * PAIR);
        }
    }

    // The likeliest token of some, and its logit. Of equals the first, as torch's max has it.
    struct Candidate {
        float logit;
        int32_t token;
    };

    static Candidate best_of(const float* logits, int count, int first) {
        const V low = between(load(logits), 0, count, NOTHING);
        const V high = between(load(logits + LANES), 0, count - LANES, NOTHING);
        const float most = maximum(max(low, high));
        int i = 0;
        while (i < count - 1 && logits[i] != most) ++i;
        return {most, first + i};
    }

    int32_t likeliest(int kept_row) const {
        const Candidate* mine = candidates_.get() + size_t{1} * kept_row * head_.pairs;
        Candidate best = mine[0];
        for (int i = 1; i < head_.pairs; ++i)
            if (mine[i].logit > best.logit) best = mine[i];
        return best.token;
    }

    // Queries, keys and values; the first two normalised and turned, the last two written to the cache, in one pass.
    void project(Counter& counter, const Step& step, Layer& layer, Bench<E>& bench) {
        const int head_dim = shape_.head_dim, all = shape_.heads + 2 * shape_.kv_heads;
        const int together = rows_together(shape_.hidden);
        float* found = bench.scores[0];
        static_assert(sizeof bench.scores >= sizeof(float) * ROWS * MOST_HEAD_DIM);
        // A head of 16 is half of a pair: the other half is not looked at.
        const int shift_of_odd = head_dim < PAIR ? head_dim : 0;
        share_guided(counter, (step.tokens + together - 1) / together * all, [&](int item) {
            const int head = item % all, first = item / all * together;
            const int end = std::min(step.tokens, first + together);
            const int blocks = (end - first + ROWS - 1) / ROWS;
            for (int block = 0, row = first; row < end; ++block, row += ROWS) {
                const int rows = std::min(ROWS, end - row);
                const E* a = normed_.get() + size_t{1} * row * shape_.hidden;
                for (int d = 0; d < head_dim; d += PAIR) {
                    const int pair = (head * head_dim + d) / PAIR;
                    times_pair(unit_, layer.project, pair, a, shape_.hidden, rows, found + d, MOST_HEAD_DIM,
                               ask_beside(layer.project, pair, block, blocks));
                }
                float* mine = found + head % 2 * shift_of_odd;
                for (int r = 0; r < rows; ++r) finish(step, layer, head, row + r, mine + r * MOST_HEAD_DIM);
            }
        });
    }

    void finish(const Step& step, Layer& layer, int head, int row, float* x) {
        const int head_dim = shape_.head_dim, heads = shape_.heads, kv_heads = shape_.kv_heads;
        if (layer.project_bias.count())
            for (int i = 0; i < head_dim; i += LANES)
                store(x + i, load(x + i) + load(layer.project_bias.get() + head * head_dim + i));
        const int position = step.positions[row];
        const Sequence& sequence = sequences_[sequence_of_[row]];
        const int block = sequence.table[position / shape_.block_size], offset = position % shape_.block_size;
        if (head >= heads + kv_heads) return layer.pages.write_value(block, head - heads - kv_heads, offset, x);
        const Block<float>& weight = head < heads ? layer.query_norm : layer.key_norm;
        if (weight.count()) {
            const V factor = set1(inverse_root(x, head_dim));
            for (int i = 0; i < head_dim; i += LANES)
                store(x + i, load(x + i) * factor * load(weight.get() + i));
        }
        turn(x, position);
        if (head >= heads) return layer.pages.write_key(block, head - heads, offset, x);
        E* to = query_.get() + query_place(head / group_, row, step.tokens) + size_t{1} * (head % group_) * head_dim;
        for (int i = 0; i < head_dim; i += LANES) narrowed(to + i, load(x + i));
    }

    // [kv_heads][tokens][group][head_dim]
    size_t query_place(int kv_head, int row, int tokens) const {
        return (size_t{1} * kv_head * tokens + row) * group_ * shape_.head_dim;
    }

    // Rotary position: Su et al., "RoFormer: Enhanced transformer with rotary position embedding", 2021; the halves
    // of a head are turned against one another, as transformers' `rotate_half` does.
    void turn(float* x, int position) const {
        const int half = shape_.head_dim / 2;
        const float* cosines = cosines_ + size_t{1} * position * half;
        const float* sines = sines_ + size_t{1} * position * half;
        if (half % LANES != 0) {
            for (int i = 0; i < half; ++i) {
                const float low = x[i], high = x[i + half];
                x[i] = low * cosines[i] - high * sines[i];
                x[i + half] = high * cosines[i] + low * sines[i];
            }
            return;
        }
        for (int i = 0; i < half; i += LANES) {
            const V low = load(x + i), high = load(x + i + half), c = load(cosines + i), s = load(sines + i);
            store(x + i, low * c - high * s);
            store(x + i + half, high * c + low * s);
        }
    }

    void attend(Counter* counters, Layer& layer, Bench<E>& bench) {
        const Plan& made = *std::find_if(plans_.begin(), plans_.end(),
                                         [&](const Plan& it) { return it.window == layer.window; });
        const int items = static_cast<int>(made.items.size()), joints = static_cast<int>(made.joints.size());
        configure(made.most_rows);
        // The heads of a sequence lie side by side.
        share(counters[0], items, items > 8 * team_.size() * shape_.kv_heads ? shape_.kv_heads : 1, [&](int i) {
            const Item& item = made.items[i];
            const bool whole = item.part < 0;
            const int runs = (item.rows + ROWS - 1) / ROWS;
            if (whole)
                for (int run = 0; run < runs; ++run) bench.seen[run].clear(shape_.head_dim);
            for (int stretch = item.begin; stretch < item.end; ++stretch) {
                const Run<E> next = stretch + 1 < item.end ? first_run(layer, item, stretch + 1)
                                    : i + 1 < items        ? first_run(layer, made.items[i + 1], made.items[i + 1].begin)
                                                           : Run<E>{nullptr, nullptr};
                bool far = true;
                for (int run = runs - 1; run >= 0; --run) {
                    const Rows<E> rows = rows_of(item, run, layer);
                    if (sees_nothing(item, rows, stretch)) continue;
                    attend_stretch(unit_, layer.pages, sequences_[item.sequence], rows, stretch, far, next, bench);
                    far = false;
                    for (int r = 0; r < rows.rows; ++r) {
                        const float* part = bench.part + r * shape_.head_dim;
                        if (whole) {
                            bench.seen[run].join(r, bench.most[r], bench.weight[r], part, shape_.head_dim);
                            continue;
                        }
                        float* to = part_at(item, stretch, run * ROWS + r);
                        to[0] = bench.most[r];
                        to[1] = bench.weight[r];
                        std::memcpy(to + LANES, part, shape_.head_dim * sizeof(float));
                    }
                }
            }
            if (whole)
                for (int run = 0; run < runs; ++run) deliver(item, run, bench.seen[run]);
        });
        if (joints == 0) return;
        team_.barrier();
        share(counters[1], joints, 1, [&](int i) {
            const Joint& joint = made.joints[i];
            const Item& first = made.items[joint.item];
            for (int run = 0; run < (first.rows + ROWS - 1) / ROWS; ++run) {
                Seen& seen = bench.seen[run];
                seen.clear(shape_.head_dim);
                for (int piece = 0; piece < joint.items; ++piece) {
                    const Item& item = made.items[joint.item + piece];
                    const Rows<E> rows = rows_of(item, run, layer);
                    for (int stretch = item.begin; stretch < item.end; ++stretch) {
                        if (sees_nothing(item, rows, stretch)) continue;
                        for (int r = 0; r < rows.rows; ++r) {
                            const float* part = part_at(item, stretch, run * ROWS + r);
                            seen.join(r, part[0], part[1], part + LANES, shape_.head_dim);
                        }
                    }
                }
                deliver(first, run, seen);
            }
        });
    }

    // A run of rows that ends before the stretch begins. (One whose window begins behind it has only weights of 0.)
    bool sees_nothing(const Item& item, const Rows<E>& rows, int stretch) const {
        return rows.position(sequences_[item.sequence], rows.rows - 1) < stretch * STRETCH;
    }

    Run<E> first_run(const Layer& layer, const Item& item, int stretch) const {
        Run<E> found;
        find_runs(layer.pages, sequences_[item.sequence], item.head, stretch * STRETCH, LANES, &found);
        return found;
    }

    float* part_at(const Item& item, int stretch, int r) {
        const size_t index = item.part + size_t{1} * (stretch - item.begin) * item.rows + r;
        return parts_.get() + index * (shape_.head_dim + LANES);
    }

    Rows<E> rows_of(const Item& item, int run, const Layer& layer) const {
        const Sequence& sequence = sequences_[item.sequence];
        const int tokens = sequences_.back().first + sequences_.back().count;
        const int first_row = item.first_row + run * ROWS;
        const E* query = query_.get() + query_place(item.head, sequence.first, tokens) +
                         size_t{1} * first_row * shape_.head_dim;
        const int rows = std::min(ROWS, item.rows - run * ROWS);
        return {query, rows, first_row, group_, item.head, layer.window, shape_.scale};
    }

    // The rows' answers, to where the next product reads them: [tokens][heads x head_dim].
    void deliver(const Item& item, int run, const Seen& seen) {
        const Sequence& sequence = sequences_[item.sequence];
        for (int r = 0; r < std::min(ROWS, item.rows - run * ROWS); ++r) {
            const int row = item.first_row + run * ROWS + r;
            E* to = attended_.get() + (size_t{1} * (sequence.first + row / group_) * shape_.heads +
                                       item.head * group_ + row % group_) *
                                          shape_.head_dim;
            const V share = set1(1.0f / seen.weight[r]);
            for (int d = 0; d < shape_.head_dim; d += LANES)
                narrowed(to + d, load(seen.values + r * shape_.head_dim + d) * share);
        }
    }

    const Shape shape_;
    const Unit unit_;
    const int group_;
    Team team_;
    std::vector<Layer> layers_;
    std::vector<Bench<E>> benches_;
    std::vector<Draw> draws_;
    Matrix<E> head_;
    Block<float> norm_;
    const E* embedding_ = nullptr;
    const float* cosines_ = nullptr;
    const float* sines_ = nullptr;

    std::vector<Sequence> sequences_;
    std::vector<int> sequence_of_;
    std::vector<Counter> counters_;
    std::vector<Plan> plans_;
    Block<float> residual_, parts_;
    Block<Candidate> candidates_;
    Block<E> normed_, query_, attended_, gated_;
};

}  // namespace rota
