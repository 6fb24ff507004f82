// SAMPLE: a token from each row of logits, as gr/sample.h defines it.
// Memory: a row is read from L2 three times, by all multiprocessors at once; a row with edits or a
// mask is written once; a histogram of it is written and read. Bound by latency: three launches
// that each wait for L2 a few times, and the last block's work on few entries. Grid: a block a
// slice of 2048 entries, 4 a thread, loaded as 16 bytes.
//
//   gr_sample_first   the row after its edits and its mask; the first rank of each slice
//   gr_sample_count   a histogram of the row by distance from its first logit
//   gr_sample_draw    the bin in which top_k, or else top_p, ends. For top_k the entries of the
//                     bins up to there are listed; otherwise those of this bin, and the weights
//                     of the ones above are added up for each slice. The last block filters the
//                     list and draws from it, or from the slice that the random number falls into
//
// Nothing is sorted: the last rank that is kept is found byte by byte from histograms of weights,
// among the few that are listed. Where more entries than fit share a bin (equal logits, a top_k
// above 2048), one block reads the whole row byte by byte, about 10 us a pass. Sums are integers,
// so they do not depend on the order of the atomics.
#include "gr/kernel/sample.h"
#include "kernels/block.cuh"
#include "kernels/last.cuh"

enum {
    V = 4,
    SLICE = GR_SAMPLE_SLICE,
    THREADS = SLICE / V,
    WARPS = THREADS / WARP,
    BINS = GR_SAMPLE_BINS,
    FEW = GR_SAMPLE_FEW,
    BYTE = 256
};

// ---- sums ----

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

// The sum over this lane and those before it.
template <typename T> GR_DEV T running(T v)
{
    for (int o = 1; o < WARP; o *= 2) {
        T u = __shfl_up_sync(~0u, v, o);
        v += threadIdx.x % WARP >= (uint32_t)o ? u : 0;
    }
    return v;
}

struct sums {
    uint64_t before, all;
};

// Sums over the threads before this one, and over the block. warp [WARPS] is shared.
GR_ONCE struct sums block_sums(uint64_t *warp, uint64_t v)
{
    uint32_t lane = threadIdx.x % WARP, me = threadIdx.x / WARP;
    uint64_t upto = running(v);
    __syncthreads();
    if (lane == WARP - 1)
        warp[me] = upto;
    __syncthreads();
    uint64_t sum = lane < WARPS ? warp[lane] : 0;
    return {upto - v + warp_add(lane < me ? sum : 0), warp_add(sum)};
}

// ---- a block's part of a row ----

enum boundary { NO_BOUNDARY, BY_COUNT, BY_WEIGHT };

struct part {
    struct gr_sample_row h;
    struct gr_sample_work *w;
    const float *x; // the row
    float *edited;  // the row after edits and mask; NULL: it has none
    int32_t *out;
    uint32_t n, n_slice, slice;
    uint32_t at; // this thread's first entry

    // The filter that entries are counted for.
    __device__ __forceinline__ enum boundary by() const
    {
        return h.top_k > 0 && (uint32_t)h.top_k < n ? BY_COUNT
               : h.top_p < 1                        ? BY_WEIGHT
                                                    : NO_BOUNDARY;
    }
};

GR_DEV struct part part_of(const struct gr_kernel_sample &k)
{
    uint32_t row = blockIdx.x / k.n_slice, slice = blockIdx.x - row * k.n_slice;
    struct gr_sample_row h = *row_of<struct gr_sample_row>(k.a.rows, row);
    bool edited = h.n_edit || h.mask;
    return {h,
            k.work + row,
            row_of<float>(k.a.logits, row),
            edited ? k.edited + (size_t)row * k.stride : nullptr,
            row_of<int32_t>(k.a.ids, 0) + row,
            (uint32_t)k.a.logits.cols,
            k.n_slice,
            slice,
            slice * SLICE + threadIdx.x * V};
}

// The same for what comes after gr_sample_first.
GR_DEV struct part edited_part_of(const struct gr_kernel_sample &k)
{
    struct part p = part_of(k);
    p.x = p.edited ? p.edited : p.x;
    return p;
}

// Entries from p.at on; -inf behind the row's end.
GR_DEV void take(const struct part &p, float *x)
{
    if (p.at + V <= p.n && (uintptr_t)p.x % 16 == 0)
        load<V>(p.x + p.at, x);
    else
        for (uint32_t i = 0; i < V; i++)
            x[i] = p.at + i < p.n ? p.x[p.at + i] : -INFINITY;
}

// The row's first rank, in every warp.
GR_DEV uint64_t first_of(const struct part &p)
{
    uint64_t first = 0;
    for (uint32_t i = threadIdx.x % WARP; i < p.n_slice; i += WARP) {
        uint64_t r = p.w->slice[i].first;
        first = r > first ? r : first;
    }
    return warp_largest(first);
}

// True when nothing is to be drawn; id: the result.
GR_DEV bool settled(const struct part &p, uint64_t first, int32_t &id)
{
    id = first == 0                     ? (int32_t)GR_SAMPLE_NONE
         : first == GR_SAMPLE_LEFT_NONE ? (int32_t)GR_SAMPLE_EXCLUDED
         : first == ~(uint64_t)0        ? (int32_t)GR_SAMPLE_NAN
                                        : gr_sample_id(first);
    return id < 0 || !(p.h.temp > 0);
}

// Bins of 1/64 and less, then 1/32, 1/16 and 1/8, up to 120 below the first logit.
GR_DEV uint32_t bin_of(float x, float best)
{
    float below = x == best ? 0 : best - x;
    uint32_t bin = (__float_as_uint(8 + below) - __float_as_uint(8)) >> 14;
    return bin < BINS ? bin : BINS - 1;
}

// Bins of a histogram, in copies so that lanes seldom meet; 64-bit sums as two words. Copies of a
// bin are in different banks, and so are bins of a copy.
template <int N, int COPIES> struct bins {
    enum { PITCH = COPIES > 1 ? N + 1 : N };
    alignas(16) uint32_t low[COPIES][PITCH];
    uint32_t high[COPIES][PITCH], count[COPIES][PITCH];

    __device__ __forceinline__ void clear()
    {
        static_assert(3 * COPIES * PITCH % 4 == 0, "16 bytes at a time");
        uint4 *p = (uint4 *)&low[0][0];
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < 3 * COPIES * PITCH / 4; i += THREADS)
            p[i] = make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void add(uint32_t bin, uint64_t weight)
    {
        uint32_t copy = threadIdx.x % COPIES, lo = (uint32_t)weight;
        uint32_t old = atomicAdd(&low[copy][bin], lo), hi = (uint32_t)(weight >> 32);
        hi += old + lo < old;
        if (hi)
            atomicAdd(&high[copy][bin], hi);
        atomicAdd(&count[copy][bin], 1);
    }
    __device__ __forceinline__ uint32_t n(uint32_t bin) const
    {
        uint32_t n = 0;
        for (uint32_t c = 0; c < COPIES; c++)
            n += count[c][bin];
        return n;
    }
    __device__ __forceinline__ uint64_t all(uint32_t bin) const
    {
        uint64_t sum = 0;
        for (uint32_t c = 0; c < COPIES; c++)
            sum += low[c][bin] + ((uint64_t)high[c][bin] << 32);
        return sum;
    }
};

// ---- the first two launches ----

// Edits and masks this thread's entries x of a slice, and writes them. Edits are each of another
// entry; the threads share them. slice [SLICE] is shared.
GR_DEV void edit(const struct gr_kernel_sample &k, const struct part &p, float *slice, float *x)
{
    const uint32_t *mask = row_of<uint32_t>(k.a.masks, p.h.mask - 1);
    uint32_t base = p.slice * SLICE, me = threadIdx.x * V;
    for (uint32_t i = 0; i < V; i++)
        slice[me + i] = x[i];
    __syncthreads();
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i < p.h.n_edit; i += THREADS) {
        struct gr_sample_edit e = *row_of<struct gr_sample_edit>(k.a.edits, p.h.edit + i);
        uint32_t at = (uint32_t)e.id - base;
        if (at < SLICE)
            slice[at] = gr_sample_edited(slice[at], &p.h, e);
    }
    __syncthreads();
    for (uint32_t i = 0; i < V; i++) {
        bool out = p.h.mask && p.at + i < p.n && !gr_sample_allowed(mask, (int32_t)(p.at + i));
        x[i] = out ? -INFINITY : slice[me + i];
    }
    if (p.at + V <= p.n)
        store<V>(p.edited + p.at, x);
    else
        for (uint32_t i = 0; i < V; i++)
            if (p.at + i < p.n)
                p.edited[p.at + i] = x[i];
}

GR_KERNEL(gr_sample_first, struct gr_kernel_sample, THREADS, 2)
{
    __shared__ uint64_t warp[WARPS];
    __shared__ float slice[SLICE];
    struct part p = part_of(a);
    float raw[V], x[V];
    uint64_t first = 0;
    take(p, raw);
    for (uint32_t i = 0; i < V; i++)
        x[i] = raw[i];
    if (p.edited)
        edit(a, p, slice, x);
    for (uint32_t i = 0; i < V; i++) {
        uint64_t r = raw[i] != raw[i]     ? ~(uint64_t)0
                     : x[i] > -INFINITY   ? gr_sample_rank(x[i], (int32_t)(p.at + i))
                     : raw[i] > -INFINITY ? GR_SAMPLE_LEFT_NONE
                                          : 0;
        first = r > first ? r : first;
    }
    for (uint32_t i = p.slice * THREADS + threadIdx.x; i < BINS; i += p.n_slice * THREADS)
        p.w->weight[i] = 0, p.w->count[i] = 0;
    if (p.slice == 0 && threadIdx.x == 0)
        p.w->n_list = p.w->n_done = 0;
    first = warp_largest(first);
    if (threadIdx.x % WARP == 0)
        warp[threadIdx.x / WARP] = first;
    __syncthreads();
    if (threadIdx.x >= WARP)
        return;
    first = warp_largest(threadIdx.x < WARPS ? warp[threadIdx.x] : 0);
    if (threadIdx.x == 0)
        p.w->slice[p.slice].first = first;
}

GR_KERNEL(gr_sample_count, struct gr_kernel_sample, THREADS, 2)
{
    __shared__ struct bins<BINS, 1> bins;
    struct part p = edited_part_of(a);
    enum boundary by = p.by();
    float x[V];
    int32_t id;
    take(p, x);
    uint64_t first = first_of(p);
    float best = gr_sample_logit(first);
    if (settled(p, first, id) || by == NO_BOUNDARY)
        return;
    bins.clear();
    __syncthreads();
    for (uint32_t i = 0; i < V; i++)
        if (p.at + i < p.n)
            bins.add(bin_of(x[i], best), by == BY_COUNT ? 1 : gr_sample_weight(x[i], best, 1));
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
        if (bins.n(i)) {
            atomicAdd(&p.w->count[i], bins.n(i));
            atomicAdd((unsigned long long *)&p.w->weight[i], bins.all(i));
        }
}

// ---- the draw ----

struct shared {
    struct bins<BYTE, 8> bins;
    uint64_t sum[BYTE];
    uint32_t count[BYTE];
    uint64_t warp[WARPS];
    uint64_t list[FEW];
    uint32_t from[GR_SAMPLE_SLICES]; // first entry in list, less the one in the row's
    uint64_t need;                   // weight that the entries of the chosen bin must still add
    uint64_t target;                 // of the draw, in the chosen slice
    uint32_t bin, whole, at, n, slice;
};

// Weight of an entry in the draw.
struct rule {
    float best, temp;
    uint32_t last_bin;    // no entry behind this bin is left ..
    uint64_t last, least; // .. nor one that ranks below, or weighs less at temperature 1
};

GR_ONCE uint64_t weight_at(float x, float best, float temp)
{
    return gr_sample_weight(x, best, temp);
}

GR_DEV uint64_t weight_of(const struct rule &u, uint64_t rank)
{
    float x = gr_sample_logit(rank);
    bool keep = rank >= u.last && bin_of(x, u.best) <= u.last_bin &&
                (!u.least || weight_at(x, u.best, 1) >= u.least);
    return keep ? weight_at(x, u.best, u.temp) : 0;
}

// Entries, ids ascending: a row of logits, or listed ranks.
struct entries {
    const float *x; // NULL: listed
    const uint64_t *list;
    uint32_t n;

    __device__ __forceinline__ uint64_t rank(uint32_t i) const
    {
        return x ? gr_sample_rank(x[i], (int32_t)i) : list[i];
    }
};

// Calls f with the rank of each entry; several loads at a time, and one copy of f's code, which a
// launch fetches from L2.
template <typename F> GR_DEV void each(const struct entries &e, F f)
{
    for (uint32_t i = threadIdx.x; i < e.n; i += V * THREADS) {
        uint64_t r[V];
        for (uint32_t k = 0; k < V; k++)
            r[k] = i + k * THREADS < e.n ? e.rank(i + k * THREADS) : 0;
#pragma unroll 1
        for (uint32_t k = 0; k < V; k++) {
            if (i + k * THREADS < e.n)
                f(r[0]);
            r[0] = r[1], r[1] = r[2], r[2] = r[3];
        }
    }
}

// Adds up the copies; then warp 0 finds the bin, from the highest down, in which the sum reaches
// s.need, and takes from s.need what is above it.
GR_DEV void choose_bin(struct shared &s)
{
    uint32_t lane = threadIdx.x, bin = threadIdx.x;
    if (bin < BYTE) {
        s.sum[bin] = s.bins.all(bin);
        s.count[bin] = s.bins.n(bin);
    }
    __syncthreads();
    if (threadIdx.x < WARP) { // lane 0 has the highest 8 bins
        uint64_t own = 0, need = s.need;
        uint32_t top = BYTE - 1 - 8 * lane;
        for (uint32_t i = 0; i < 8; i++)
            own += s.sum[top - i];
        uint64_t upto = running(own);
        __syncwarp(); // all have read s.need
        if (lane == (uint32_t)__ffs(__ballot_sync(~0u, upto >= need)) - 1) {
            need -= upto - own;
            for (; s.sum[top] < need; top--)
                need -= s.sum[top];
            s.need = need, s.bin = top;
            s.whole = s.sum[top] == need || s.count[top] == 1;
        }
    }
    __syncthreads();
}

// A rank such that the entries of e from there up, and from `least` up, weigh `need` (at most what
// all of them do), and would not without the last of them. by: what an entry weighs, 1 or as at
// temperature 1.
GR_ONCE uint64_t select(struct shared &s, struct entries e, uint64_t least, uint64_t need,
                        enum boundary by, float best)
{
    uint64_t prefix = 0, mask = 0;
    __syncthreads();
    if (threadIdx.x == 0)
        s.need = need;
    for (int shift = 56; shift >= 0; shift -= 8) {
        s.bins.clear();
        __syncthreads();
        each(e, [&](uint64_t r) {
            if (r >= least && (r & mask) == prefix)
                s.bins.add((uint32_t)(r >> shift) & (BYTE - 1),
                           by == BY_COUNT ? 1 : weight_at(gr_sample_logit(r), best, 1));
        });
        __syncthreads();
        choose_bin(s);
        prefix |= (uint64_t)s.bin << shift, mask |= (uint64_t)(BYTE - 1) << shift;
        if (s.whole)
            break;
    }
    return prefix > least ? prefix : least;
}

// The last rank of e that top_k and top_p leave.
GR_DEV uint64_t last_kept(struct shared &s, const struct part &p, const struct entries &e,
                          float best)
{
    uint64_t last = 0, own = 0;
    if (p.by() == BY_COUNT)
        last = select(s, e, 0, (uint32_t)p.h.top_k, BY_COUNT, best);
    if (!(p.h.top_p < 1))
        return last;
    each(e, [&](uint64_t r) { own += r >= last ? weight_at(gr_sample_logit(r), best, 1) : 0; });
    uint64_t all = block_sums(s.warp, own).all;
    return select(s, e, last, gr_sample_part(p.h.top_p, all), BY_WEIGHT, best);
}

// Finds the bin in which the filter ends, s.bin, and s.need of it. s.n: entries to be listed.
GR_DEV void find_bin(struct shared &s, const struct part &p)
{
    enum { EACH = BINS / THREADS };
    const struct gr_sample_work *w = p.w;
    uint64_t weight[EACH], sum = 0, n = 0;
    uint32_t count[EACH], bin = threadIdx.x * EACH;
    for (uint32_t i = 0; i < EACH; i++)
        weight[i] = w->weight[bin + i], count[i] = w->count[bin + i];
    for (uint32_t i = 0; i < EACH; i++)
        sum += weight[i], n += count[i];
    struct sums row = block_sums(s.warp, sum);
    uint64_t before = row.before, above = block_sums(s.warp, n).before;
    bool by_count = p.by() == BY_COUNT;
    uint64_t need = by_count ? (uint64_t)p.h.top_k : gr_sample_part(p.h.top_p, row.all);
    for (uint32_t i = 0; i < EACH; before += weight[i], above += count[i++])
        if (before < need && need - before <= weight[i]) {
            s.bin = bin + i, s.need = need - before;
            s.n = (by_count ? (uint32_t)above : 0) + count[i];
        }
    __syncthreads();
}

// Lists the slice's entries x in bins lo to hi, and adds up the weights of those in the bins
// before.
GR_DEV void list_slice(struct shared &s, const struct part &p, const float *x, uint32_t lo,
                       uint32_t hi, const struct rule &u)
{
    uint64_t n = 0, sum = 0;
    uint32_t listed = 0;
    for (uint32_t i = 0; i < V; i++) {
        if (p.at + i >= p.n)
            continue;
        uint32_t bin = bin_of(x[i], u.best);
        if (bin < lo)
            sum += weight_of(u, gr_sample_rank(x[i], (int32_t)(p.at + i)));
        else if (bin <= hi)
            listed |= 1u << i, n++;
    }
    struct sums run = block_sums(s.warp, n);
    sum = block_sums(s.warp, sum).all;
    if (threadIdx.x == 0) {
        struct gr_sample_slice *mine = &p.w->slice[p.slice];
        mine->sum = sum, mine->n = (uint32_t)run.all;
        mine->at = s.at = mine->n ? atomicAdd(&p.w->n_list, mine->n) : 0;
    }
    __syncthreads();
    uint32_t to = s.at + (uint32_t)run.before;
    for (uint32_t i = 0; i < V; i++)
        if (listed >> i & 1)
            p.w->list[to++] = gr_sample_rank(x[i], (int32_t)(p.at + i));
}

// Puts the listed entries in the order of their ids, into s.list. A slice has its run in the list,
// wherever.
GR_DEV struct entries join(struct shared &s, const struct part &p)
{
    uint32_t j = threadIdx.x, n_list = p.w->n_list;
    uint64_t own = j < p.n_slice ? p.w->slice[j].n : 0;
    uint64_t rank[FEW / THREADS];
    for (uint32_t k = 0; k < FEW / THREADS; k++)
        rank[k] = p.w->list[j + k * THREADS]; // without a wait for n_list
    uint32_t from = (uint32_t)block_sums(s.warp, own).before;
    if (j < p.n_slice)
        s.from[j] = from - p.w->slice[j].at;
    __syncthreads();
    for (uint32_t k = 0; k < FEW / THREADS; k++)
        if (j + k * THREADS < n_list)
            s.list[s.from[(uint32_t)gr_sample_id(rank[k]) / SLICE] + j + k * THREADS] = rank[k];
    __syncthreads();
    return {nullptr, s.list, n_list};
}

// Draws: the first entry of the row whose running sum is above the target. own: what thread j knows
// of slice j's weight, to which the entries e add the rest.
GR_DEV void draw(struct shared &s, const struct part &p, uint64_t own, const struct entries &e,
                 const struct rule &u)
{
    uint32_t j = threadIdx.x;
    uint64_t weight[V], sum = 0;
    __syncthreads();
    s.bins.clear();
    __syncthreads();
    each(e, [&](uint64_t r) {
        uint64_t w = weight_of(u, r);
        if (w)
            s.bins.add((uint32_t)gr_sample_id(r) / SLICE, w);
    });
    __syncthreads();
    own += j < p.n_slice ? s.bins.all(j) : 0;
    struct sums slices = block_sums(s.warp, own);
    uint64_t to = gr_sample_target(gr_sample_random(&p.h), slices.all);
    if (to >= slices.before && to - slices.before < own)
        s.slice = j, s.target = to - slices.before;
    __syncthreads();
    uint32_t at = s.slice * SLICE + j * V;
    for (uint32_t i = 0; i < V; i++)
        sum += weight[i] =
            at + i < p.n ? weight_of(u, gr_sample_rank(p.x[at + i], (int32_t)(at + i))) : 0;
    uint64_t before = block_sums(s.warp, sum).before;
    to = s.target;
    for (uint32_t i = 0; i < V; before += weight[i++])
        if (to >= before && to - before < weight[i])
            *p.out = (int32_t)(at + i);
}

GR_KERNEL(gr_sample_draw, struct gr_kernel_sample, THREADS, 1)
{
    __shared__ struct shared s;
    struct part p = edited_part_of(a);
    enum boundary by = p.by();
    float x[V];
    take(p, x);
    uint64_t first = first_of(p), need = 0;
    int32_t id;
    if (settled(p, first, id)) {
        if (p.slice == 0 && threadIdx.x == 0)
            *p.out = id;
        return;
    }
    struct rule u = {gr_sample_logit(first), p.h.temp, BINS - 1, 0, 0};
    u.least = p.h.min_p > 0 ? gr_sample_part(p.h.min_p, GR_SAMPLE_ONE) : 0;
    bool few = true;
    if (by != NO_BOUNDARY) {
        find_bin(s, p);
        few = s.n <= FEW, u.last_bin = few ? s.bin : BINS - 1, need = s.need;
    }
    struct entries e = {p.x, nullptr, p.n};
    uint64_t own = 0;
    if (few) {
        uint32_t hi = u.last_bin, lo = BINS;
        if (by != NO_BOUNDARY)
            lo = by == BY_COUNT ? 0 : hi;
        list_slice(s, p, x, lo, hi, u);
        if (!last_of(&p.w->n_done, p.n_slice))
            return;
        e = join(s, p);
        own = threadIdx.x < p.n_slice ? p.w->slice[threadIdx.x].sum : 0;
    } else if (p.slice) {
        return;
    }
    if (few && by == BY_WEIGHT)
        u.last = select(s, e, 0, need, BY_WEIGHT, u.best);
    else if (by != NO_BOUNDARY)
        u.last = last_kept(s, p, e, u.best);
    draw(s, p, own, e, u);
}
