// SAMPLE: a token from each row of logits, as gr/sample.h defines it.
// Memory: the row is read from L2 once for the maximum, once for every byte of the rank that
// decides top_k (3 or 4), once to gather the entries that are left; without top_k also for top_p
// and the draw. Bound by the rate at which one multiprocessor reads L2, about 5 us a pass of 128 k
// logits, and by shared atomics. Grid: a block a row. Nothing is sorted: the last rank that is kept
// is found byte by byte from histograms of weights. These are integers, so sums do not depend on
// the order of the atomics.
#include "gr/sample.h"
#include "kernels/block.cuh"

enum { THREADS = 1024, WARPS = THREADS / WARP, COPIES = 8, BINS = 256, FEW = 512 };

// Bins of a histogram, in copies so that lanes seldom meet; 64-bit sums as two words.
struct bins {
    uint32_t low[BINS][COPIES], high[BINS][COPIES], count[BINS][COPIES];
};

struct shared {
    struct bins bins;
    uint64_t sum[BINS];
    uint32_t count[BINS];
    uint64_t warp[WARPS];
    uint64_t need; // weight that the entries of the chosen bin must still add
    int32_t digit, whole;
    uint32_t n_above; // entries above the chosen bin
    uint32_t n_few;
    float few_x[FEW];
    int32_t few_id[2][FEW];
};

// Entries: a row of logits, or a few of it.
struct entries {
    const float *x;
    const int32_t *id; // ascending; NULL: entry i has id i
    uint32_t n;

    __device__ __forceinline__ int32_t id_of(uint32_t i) const
    {
        return id ? id[i] : (int32_t)i;
    }
    __device__ __forceinline__ uint64_t rank(uint32_t i) const
    {
        return gr_sample_rank(x[i], id_of(i));
    }
};

GR_DEV uint64_t warp_add(uint64_t v)
{
    for (int o = WARP / 2; o > 0; o /= 2)
        v += __shfl_xor_sync(~0u, v, o);
    return v;
}

GR_DEV uint64_t warp_largest(uint64_t v)
{
    for (int o = WARP / 2; o > 0; o /= 2) {
        uint64_t u = __shfl_xor_sync(~0u, v, o);
        v = u > v ? u : v;
    }
    return v;
}

// The sum over the block.
GR_DEV uint64_t block_add(struct shared &s, uint64_t v)
{
    v = warp_add(v);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        s.warp[threadIdx.x / WARP] = v;
    __syncthreads();
    return warp_add(s.warp[threadIdx.x % WARP]);
}

// The largest rank; *nan: a logit is not a number.
GR_DEV uint64_t first_rank(struct shared &s, const struct entries &e, bool &nan)
{
    uint64_t first = 0;
    int bad = 0;
    for (uint32_t i = threadIdx.x; i < e.n; i += THREADS) {
        uint64_t r = e.rank(i);
        bad |= e.x[i] != e.x[i];
        first = r > first ? r : first;
    }
    first = warp_largest(first);
    if (threadIdx.x % WARP == 0)
        s.warp[threadIdx.x / WARP] = first;
    nan = __syncthreads_or(bad);
    return warp_largest(s.warp[threadIdx.x % WARP]);
}

GR_DEV void clear(struct bins &b)
{
    uint32_t *p = &b.low[0][0];
    for (uint32_t i = threadIdx.x; i < sizeof b / sizeof *p; i += THREADS)
        p[i] = 0;
}

GR_DEV void count_in(struct bins &b, uint32_t bin, uint64_t weight)
{
    uint32_t copy = threadIdx.x % COPIES, low = (uint32_t)weight;
    uint32_t old = atomicAdd(&b.low[bin][copy], low), high = (uint32_t)(weight >> 32);
    high += old + low < old;
    if (high)
        atomicAdd(&b.high[bin][copy], high);
    atomicAdd(&b.count[bin][copy], 1);
}

// The sum over this lane and those before it.
template <typename T> GR_DEV T running(T v)
{
    for (int o = 1; o < WARP; o *= 2) {
        T u = __shfl_up_sync(~0u, v, o);
        v += threadIdx.x % WARP >= (uint32_t)o ? u : 0;
    }
    return v;
}

// Adds up the copies; then warp 0 finds the bin, from the highest down, in which the sum reaches
// s.need, and takes from s.need what is above it.
GR_DEV void choose_bin(struct shared &s)
{
    uint32_t lane = threadIdx.x, bin = threadIdx.x;
    if (bin < BINS) {
        uint64_t sum = 0;
        uint32_t count = 0;
        for (int c = 0; c < COPIES; c++) {
            sum += s.bins.low[bin][c] + ((uint64_t)s.bins.high[bin][c] << 32);
            count += s.bins.count[bin][c];
        }
        s.sum[bin] = sum, s.count[bin] = count;
    }
    __syncthreads();
    if (threadIdx.x < WARP) { // lane 0 has the highest 8 bins
        uint64_t own = 0, need = s.need;
        uint32_t n = 0;
        int32_t top = BINS - 1 - 8 * (int32_t)lane;
        for (int i = 0; i < 8; i++)
            own += s.sum[top - i], n += s.count[top - i];
        uint64_t upto = running(own);
        uint32_t above = running(n) - n;
        __syncwarp(); // all have read s.need
        if (lane == (uint32_t)__ffs(__ballot_sync(~0u, upto >= need)) - 1) {
            need -= upto - own;
            for (; s.sum[top] < need; top--)
                need -= s.sum[top], above += s.count[top];
            s.need = need, s.digit = top, s.n_above += above;
            s.whole = s.sum[top] == need || s.count[top] == 1;
        }
    }
    __syncthreads();
}

// The n <= FEW entries from rank `last` up, in the order of their ids.
GR_DEV struct entries gather(struct shared &s, const struct entries &e, uint64_t last)
{
    __syncthreads();
    if (threadIdx.x == 0)
        s.n_few = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < e.n; i += THREADS)
        if (e.rank(i) >= last)
            s.few_id[0][atomicAdd(&s.n_few, 1)] = (int32_t)i;
    __syncthreads();
    uint32_t n = s.n_few;
    if (threadIdx.x < n) {
        int32_t id = s.few_id[0][threadIdx.x];
        uint32_t at = 0;
        for (uint32_t j = 0; j < n; j++)
            at += s.few_id[0][j] < id;
        s.few_id[1][at] = id, s.few_x[at] = e.x[id];
    }
    __syncthreads();
    return {s.few_x, s.few_id[1], n};
}

// The largest rank such that the entries from there up, and from `least` up, weigh `need` (at most
// what all of them do). weight: of an entry of e, which is replaced by the entries left when they
// are few.
template <typename F>
GR_DEV uint64_t select(struct shared &s, struct entries &e, uint64_t least, uint64_t need, F weight)
{
    uint64_t prefix = 0, mask = 0;
    __syncthreads();
    if (threadIdx.x == 0)
        s.need = need, s.n_above = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        clear(s.bins);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < e.n; i += THREADS) {
            uint64_t r = e.rank(i);
            if (r >= least && (r & mask) == prefix)
                count_in(s.bins, (uint32_t)(r >> shift) & (BINS - 1), weight(i));
        }
        __syncthreads();
        choose_bin(s);
        prefix |= (uint64_t)s.digit << shift, mask |= (uint64_t)(BINS - 1) << shift;
        bool whole = s.whole;
        if (!e.id && s.n_above + s.count[s.digit] <= FEW)
            e = gather(s, e, prefix > least ? prefix : least);
        if (whole)
            break;
    }
    return prefix > least ? prefix : least;
}

// The first entry whose running sum is above the target. A warp has a stretch of neighbours.
template <typename F>
GR_DEV void draw(struct shared &s, const struct entries &e, uint64_t random, F weight, int32_t *out)
{
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t per = (e.n + THREADS - 1) / THREADS * WARP, lo = warp * per;
    uint32_t hi = lo + per < e.n ? lo + per : e.n;
    uint64_t own = 0, before = 0;
    for (uint32_t i = lo + lane; i < hi; i += WARP)
        own += weight(i);
    uint64_t target = gr_sample_target(random, block_add(s, own));
    for (uint32_t w = 0; w < warp; w++)
        before += s.warp[w];
    if (target < before || target - before >= s.warp[warp])
        return;
    for (uint32_t i = lo + lane;; i += WARP) { // ends: the target is in this warp's stretch
        uint64_t upto = running(i < hi ? weight(i) : 0);
        uint32_t above = __ballot_sync(~0u, before + upto > target);
        if (above) {
            if (lane == (uint32_t)__ffs(above) - 1)
                *out = e.id_of(i);
            return;
        }
        before += __shfl_sync(~0u, upto, WARP - 1);
    }
}

GR_KERNEL(gr_sample_rows, struct gr_args_sample, THREADS, 1)
{
    __shared__ struct shared s;
    const struct gr_sample_row h = *row_of<struct gr_sample_row>(a.rows, blockIdx.x);
    struct entries e = {row_of<float>(a.logits, blockIdx.x), nullptr, (uint32_t)a.logits.cols};
    int32_t *out = row_of<int32_t>(a.ids, 0) + blockIdx.x;
    bool nan;
    uint64_t first = first_rank(s, e, nan), last = 0;
    float best = e.x[nan ? 0 : gr_sample_id(first)];
    bool none = first >> 32 == gr_sample_rank(-INFINITY, 0) >> 32;
    if (nan || none || !(h.temp > 0)) {
        if (threadIdx.x == 0)
            *out = nan ? GR_SAMPLE_NAN : none ? GR_SAMPLE_NONE : gr_sample_id(first);
        return;
    }
    if (h.top_k > 0 && (uint32_t)h.top_k < e.n)
        last = select(s, e, 0, (uint32_t)h.top_k, [](uint32_t) -> uint64_t { return 1; });
    auto plain = [&](uint32_t i) { return gr_sample_weight(e.x[i], best, 1); };
    if (h.top_p < 1) {
        uint64_t all = 0;
        for (uint32_t i = threadIdx.x; i < e.n; i += THREADS)
            all += e.rank(i) >= last ? plain(i) : 0;
        last = select(s, e, last, gr_sample_part(h.top_p, block_add(s, all)), plain);
    }
    uint64_t least = h.min_p > 0 ? gr_sample_part(h.min_p, GR_SAMPLE_ONE) : 0;
    auto weight = [&](uint32_t i) -> uint64_t {
        bool keep = e.rank(i) >= last && (!least || plain(i) >= least);
        return keep ? gr_sample_weight(e.x[i], best, h.temp) : 0;
    };
    draw(s, e, gr_sample_random(&h), weight, out);
}
