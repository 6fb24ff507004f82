// Collectives of a warp that move words between lanes: shuffles, votes, reductions, __syncwarp.
#include "check.hpp"
#include "core.hpp"

namespace emu
{
uint32_t lane()
{
    return self().lane;
}

// in[0], in[1] values, in[2] the lane that is read. A lane that does not take part has nothing to
// give: all bits set.
template <int words> static void compute_shuffle(Warp &w, uint32_t lanes)
{
    if (lanes == ~0u) {
        for (int word = 0; word < words; word++)
            for (int l = 0; l < 32; l++)
                w.out[word][l] = w.in[word][w.in[2][l]];
        return;
    }
    for (uint32_t set = lanes; set; set &= set - 1) {
        int l = __builtin_ctz(set);
        uint32_t from = w.in[2][l];
        for (int word = 0; word < words; word++)
            w.out[word][l] = lanes >> from & 1 ? w.in[word][from] : ~0u;
    }
}

// PTX ISA, "shfl.sync": beyond the segment of `width` lanes a lane reads itself.
static uint32_t source_lane(Shuffle how, uint32_t l, int arg, int width, Site site)
{
    if (width < 1 || width > 32 || (width & (width - 1)))
        fail(site, "shuffle: width %d: a power of two up to 32 is expected", width);
    uint32_t first = l & ~(uint32_t)(width - 1), last = first | (uint32_t)(width - 1);
    uint32_t a = (uint32_t)arg;
    switch (how) {
    case Shuffle::idx:
        return first | (a & (uint32_t)(width - 1));
    case Shuffle::up:
        return a > l - first ? l : l - a;
    case Shuffle::down:
        return a > last - l ? l : l + a;
    default:
        return ((l ^ a) & 31) > last ? l : (l ^ a) & 31;
    }
}

uint32_t shuffle(Shuffle how, uint32_t mask, uint32_t value, int arg, int width, Site site)
{
    static const Together what[] = {{"__shfl_sync", compute_shuffle<1>, false},
                                    {"__shfl_up_sync", compute_shuffle<1>, false},
                                    {"__shfl_down_sync", compute_shuffle<1>, false},
                                    {"__shfl_xor_sync", compute_shuffle<1>, false}};
    Thread &t = self();
    t.warp->in[0][t.lane] = value;
    t.warp->in[2][t.lane] = source_lane(how, t.lane, arg, width, site);
    meet(what[(int)how], mask, site);
    return t.warp->out[0][t.lane];
}

uint64_t shuffle(Shuffle how, uint32_t mask, uint64_t value, int arg, int width, Site site)
{
    static const Together what[] = {{"__shfl_sync", compute_shuffle<2>, false},
                                    {"__shfl_up_sync", compute_shuffle<2>, false},
                                    {"__shfl_down_sync", compute_shuffle<2>, false},
                                    {"__shfl_xor_sync", compute_shuffle<2>, false}};
    Thread &t = self();
    t.warp->in[0][t.lane] = (uint32_t)value;
    t.warp->in[1][t.lane] = (uint32_t)(value >> 32);
    t.warp->in[2][t.lane] = source_lane(how, t.lane, arg, width, site);
    meet(what[(int)how], mask, site);
    return (uint64_t)t.warp->out[1][t.lane] << 32 | t.warp->out[0][t.lane];
}

static void give_all(Warp &w, uint32_t lanes, uint32_t value)
{
    if (lanes == ~0u) {
        for (int l = 0; l < 32; l++)
            w.out[0][l] = value;
        return;
    }
    for (uint32_t set = lanes; set; set &= set - 1)
        w.out[0][__builtin_ctz(set)] = value;
}

static uint32_t ballot(const Warp &w, uint32_t lanes)
{
    uint32_t set = 0;
    for (int l = 0; l < 32; l++)
        set |= (uint32_t)(w.in[0][l] != 0) << l;
    return set & lanes;
}
static void compute_ballot(Warp &w, uint32_t lanes)
{
    give_all(w, lanes, ballot(w, lanes));
}
static void compute_any(Warp &w, uint32_t lanes)
{
    give_all(w, lanes, ballot(w, lanes) != 0);
}
static void compute_all(Warp &w, uint32_t lanes)
{
    give_all(w, lanes, ballot(w, lanes) == lanes);
}
static void compute_uni(Warp &w, uint32_t lanes)
{
    uint32_t set = ballot(w, lanes);
    give_all(w, lanes, set == lanes || set == 0);
}

uint32_t vote(Vote how, uint32_t mask, bool value, Site site)
{
    static const Together what[] = {{"__ballot_sync", compute_ballot, false},
                                    {"__any_sync", compute_any, false},
                                    {"__all_sync", compute_all, false},
                                    {"__uni_sync", compute_uni, false}};
    Thread &t = self();
    t.warp->in[0][t.lane] = value;
    meet(what[(int)how], mask, site);
    return t.warp->out[0][t.lane];
}

template <Reduce how> static void compute_reduce(Warp &w, uint32_t lanes)
{
    uint32_t r = w.in[0][__builtin_ctz(lanes)];
    for (uint32_t set = lanes & (lanes - 1); set; set &= set - 1) {
        uint32_t v = w.in[0][__builtin_ctz(set)];
        switch (how) {
        case Reduce::add:
            r += v;
            break;
        case Reduce::min:
            r = (int32_t)v < (int32_t)r ? v : r;
            break;
        case Reduce::max:
            r = (int32_t)v > (int32_t)r ? v : r;
            break;
        case Reduce::umin:
            r = v < r ? v : r;
            break;
        case Reduce::umax:
            r = v > r ? v : r;
            break;
        case Reduce::and_:
            r &= v;
            break;
        case Reduce::or_:
            r |= v;
            break;
        case Reduce::xor_:
            r ^= v;
            break;
        }
    }
    give_all(w, lanes, r);
}

uint32_t reduce(Reduce how, uint32_t mask, uint32_t value, Site site)
{
    static const Together what[] = {{"__reduce_add_sync", compute_reduce<Reduce::add>, false},
                                    {"__reduce_min_sync", compute_reduce<Reduce::min>, false},
                                    {"__reduce_max_sync", compute_reduce<Reduce::max>, false},
                                    {"__reduce_min_sync", compute_reduce<Reduce::umin>, false},
                                    {"__reduce_max_sync", compute_reduce<Reduce::umax>, false},
                                    {"__reduce_and_sync", compute_reduce<Reduce::and_>, false},
                                    {"__reduce_or_sync", compute_reduce<Reduce::or_>, false},
                                    {"__reduce_xor_sync", compute_reduce<Reduce::xor_>, false}};
    Thread &t = self();
    t.warp->in[0][t.lane] = value;
    meet(what[(int)how], mask, site);
    return t.warp->out[0][t.lane];
}

static void compute_match(Warp &w, uint32_t lanes)
{
    for (uint32_t set = lanes; set; set &= set - 1) {
        int l = __builtin_ctz(set);
        uint32_t same = 0;
        for (int k = 0; k < 32; k++)
            same |= (uint32_t)(w.in[0][k] == w.in[0][l]) << k;
        w.out[0][l] = same & lanes;
    }
}

uint32_t match(uint32_t mask, uint32_t value, Site site)
{
    static const Together what = {"__match_any_sync", compute_match, false};
    Thread &t = self();
    t.warp->in[0][t.lane] = value;
    meet(what, mask, site);
    return t.warp->out[0][t.lane];
}

static void compute_sync(Warp &w, uint32_t lanes)
{
    check_together(w, lanes);
}

void sync_warp(uint32_t mask, Site site)
{
    static const Together what = {"__syncwarp", compute_sync, false};
    meet(what, mask, site);
}
} // namespace emu
