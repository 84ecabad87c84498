// One token drawn from a row of logits.
//
// Knows temperature, top-k, top-p and min-p, one after another, each on what the one before has left, exactly as
// sampling.py has them (where their sources are named), and how to do without sorting a vocabulary. Knows nothing of
// where randomness comes from: a number in [0, 1) is given.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "matrix.h"

namespace rota {

// top_k 0, top_p 1 and min_p 0 leave everything.
struct Wish {
    double top_p, min_p, uniform;
    float temperature;
    int32_t top_k;
};

class Draw {
   public:
    // A token of `count`. Equal weights stand in the order of their tokens.
    int32_t from(const float* logits, int count, const Wish& wish) {
        weigh(logits, count, wish.temperature);
        const bool limits_k = wish.top_k > 0 && wish.top_k < count;
        if (!limits_k && wish.top_p >= 1.0 && wish.min_p <= 0.0) return invert(count, wish.uniform);
        const int top_k = limits_k ? wish.top_k : NO_LIMIT;
        likely(count, SMALL);
        cut(top_k, wish);
        int kept = prefix(top_k, wish);
        if (kept == 0) {
            // What is less likely than SMALL has a part in it too.
            likely(count, 0.0f);
            std::sort(found_.begin(), found_.end(), before);
            kept = std::max(1, prefix(top_k, wish, true));
        }
        double running = 0.0;
        for (int i = 0; i < kept; ++i) running += found_[i].weight;
        const double goal = wish.uniform * running;
        running = 0.0;
        for (int i = 0; i < kept; ++i) {
            running += found_[i].weight;
            if (running > goal) return found_[i].token;
        }
        return found_[kept - 1].token;
    }

   private:
    struct Token {
        float weight;
        int32_t token;
    };

    static constexpr float SMALL = 0x1p-24f;
    static constexpr int NO_LIMIT = std::numeric_limits<int>::max();
    static constexpr int BLOCK = 16 * LANES;
    static constexpr int FEW = 1024;

    static bool before(const Token& a, const Token& b) {
        return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
    }

    // Weights relative to the likeliest's, their sum, and that of each block of them.
    void weigh(const float* logits, int count, float temperature) {
        const int blocks = (count + BLOCK - 1) / BLOCK;
        weights_.resize(size_t{1} * blocks * BLOCK);
        sums_.resize(blocks);
        float* weights = weights_.get();
        V most = set1(NONE);
        for (int i = 0; i < count; i += LANES) most = max(most, some(logits, i, count));
        const V top = set1(maximum(most)), scale = set1(LOG2_E / temperature);
        total_ = 0.0;
        for (int block = 0; block < blocks; ++block) {
            V sums = set1(0.0f);
            for (int i = block * BLOCK; i < (block + 1) * BLOCK; i += LANES) {
                const V weight = i < count ? exp2((some(logits, i, count) - top) * scale) : set1(0.0f);
                store(weights + i, weight);
                sums = sums + weight;
            }
            sums_[block] = sum(sums);
            total_ += sums_[block];
        }
    }

    static constexpr float NONE = -3.0e38f;

    // Logits i .. i + 15, or as many as there are.
    static V some(const float* logits, int i, int count) {
        if (i + LANES <= count) return load(logits + i);
        float padded[LANES];
        for (int lane = 0; lane < LANES; ++lane) padded[lane] = i + lane < count ? logits[i + lane] : NONE;
        return load(padded);
    }

    // Nothing is filtered: the first token whose running sum, in the order of the vocabulary, passes the goal.
    int32_t invert(int count, double uniform) const {
        const double goal = uniform * total_;
        double running = 0.0;
        size_t block = 0;
        while (block + 1 < sums_.size() && running + sums_[block] <= goal) running += sums_[block++];
        int32_t last = 0;
        const int end = std::min(count, static_cast<int>(block + 1) * BLOCK);
        for (int i = static_cast<int>(block) * BLOCK; i < end; ++i) {
            if (weights_.get()[i] <= 0.0f) continue;
            last = i;
            running += weights_.get()[i];
            if (running > goal) break;
        }
        return last;
    }

    // Every token of at least `least` goes into found_.
    void likely(int count, float least) {
        found_.clear();
        const float* weights = weights_.get();
        const V bound = set1(least);
        for (int i = 0; i < count; i += LANES) {
#if defined(__AVX512F__)
            if (_mm512_cmp_ps_mask(load(weights + i), bound, _CMP_GE_OQ) == 0) continue;
#else
            (void)bound;
#endif
            for (int j = i; j < std::min(count, i + LANES); ++j)
                if (weights[j] >= least) found_.push_back({weights[j], j});
        }
    }

    // Of many, leaves in found_ those that the prefix can reach to, by a histogram of the leading bits of their weights;
    // and sorts what is left.
    void cut(int top_k, const Wish& wish) {
        if (found_.size() > FEW) {
            constexpr int SHIFT = 19, BUCKETS = (0x3f800000 >> SHIFT) + 1;
            double sums[BUCKETS] = {};
            int counts[BUCKETS] = {};
            for (const Token& it : found_) {
                const int bucket = bucket_of(it.weight, SHIFT);
                sums[bucket] += it.weight;
                ++counts[bucket];
            }
            double running = 0.0;
            int count = 0, bucket = BUCKETS - 1;
            for (; bucket > 0; --bucket) {
                running += sums[bucket];
                count += counts[bucket];
                // top-p is a share of what top-k has left: all of that must be at hand.
                if (count >= top_k || (top_k == NO_LIMIT && running > wish.top_p * total_ * (1.0 + 1e-6))) break;
            }
            found_.erase(std::remove_if(found_.begin(), found_.end(),
                                        [&](const Token& it) { return bucket_of(it.weight, SHIFT) < bucket; }),
                         found_.end());
        }
        std::sort(found_.begin(), found_.end(), before);
    }

    static int bucket_of(float weight, int shift) {
        uint32_t bits;
        std::memcpy(&bits, &weight, sizeof bits);
        return static_cast<int>(bits >> shift);
    }

    // How many of the sorted tokens are kept; 0 when those at hand do not say. `all`: there are no others.
    int prefix(int top_k, const Wish& wish, bool all = false) const {
        const int size = static_cast<int>(found_.size());
        if (size == 0) return 0;
        double within = total_;
        if (top_k != NO_LIMIT && top_k > size && !all) return 0;
        if (top_k <= size) {
            within = 0.0;
            for (int i = 0; i < top_k; ++i) within += found_[i].weight;
        }
        const float least = static_cast<float>(wish.min_p) * found_[0].weight;
        double running = 0.0;
        int kept = 0;
        while (kept < size) {
            if (kept > 0 && found_[kept].weight < least) return kept;
            running += found_[kept++].weight;
            if (kept == top_k) return kept;
            if (wish.top_p < 1.0 && running >= wish.top_p * within) return kept;
        }
        return all ? kept : 0;
    }

    Block<float> weights_;
    std::vector<double> sums_;
    std::vector<Token> found_;
    double total_ = 0.0;
};

}  // namespace rota
