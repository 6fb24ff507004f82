// Products of warpgroups: wgmma ("Asynchronous Warpgroup Level Matrix Multiply-Accumulate
// Instructions").
//
// Each of the four warps of a warpgroup computes its 16 rows of D alone, when wgmma.wait_group asks
// for them: that is the latest moment, at which a tile that was released too early has other
// contents. With a random schedule it is now and then the earliest one, at which the instruction is
// executed.
#include <algorithm>
#include <stdio.h>

#include "products.hpp"

namespace ptx
{
constexpr uint32_t warps_of_group = 4, groups_of_a = 8; // 64 rows by 8
constexpr uint32_t tile_bytes_of_k = 32; // of a line of A or B: k times the bytes of an element

namespace
{
// --- tiles: "Shared Memory Matrix Layout", "Matrix Descriptor Format" ---

// Addresses of core matrices by a matrix descriptor. The lines are in groups of 8. A tile is
// K-major: a core matrix has the 8 lines of a group, 16 bytes of k each; or MN-major: 8 successive
// k, each with the 8 elements of a group of 8 lines. "Canonical Layouts" in bytes:
//   K-major, none       ((8, m), (T, 2)) : ((16, SBO), (1, LBO))
//   K-major, swizzled   ((8, m), (T, 2)) : ((16 W, SBO), (1, 16)), W = 2, 4, 8
//   MN-major, none      ((T, 1, m), (8, k)) : ((1, 16, SBO), (16, LBO))
//   MN-major, swizzled  ((T, W, m), (8, k)) : ((1, 16, LBO), (16 W, SBO))
struct Tile {
    uint32_t start;      // shared address
    uint32_t wide;       // W; 1: not swizzled
    uint32_t side;       // groups that lie side by side in the rows of an atom: 1 or W
    uint32_t side_shift; // its logarithm
    uint32_t group_step; // from those to the next ones
    uint32_t core_step;  // to the next core matrix along k
    uint32_t row_step;   // to the next row of a core matrix
    uint32_t mask; // Swizzle<1 to 3, 4, 3>: bits 4 to 6 of an address that bits 7 to 9 turn over

    uint32_t row(uint32_t group, uint32_t core, uint32_t r) const
    {
        const uint32_t at = start + (group & (side - 1)) * core_bytes +
                            (group >> side_shift) * group_step + core * core_step + r * row_step;
        return at ^ (at >> 3 & mask);
    }
};

// The decoded form of an mma_async, without its registers.
struct Plan {
    uint32_t n, depth;
    const Element *a, *b;
    Multiply multiply;
    Type sum;
    bool from_registers, a_transposed, b_transposed, negates;
    bool scales, scale_not; // scale-d is a predicate, the last source, or its negation
    bool scale_d;           // else
};

struct Product {
    const Inst *inst;
    uint64_t a, b; // descriptors
    bool adds;     // D = A * B + D
    bool done;
};

struct Batch {     // a wgmma-group
    uint32_t last; // number of its last product
    std::vector<uint64_t> hazards;
};

// Products that some warps of a warpgroup have issued and others have not yet: all have to issue
// the same ones in the same order.
struct Sequence {
    uint64_t first = 0; // number of the front
    std::deque<Product> issued;
};
} // namespace

struct Products {
    // By unit in flight: true for an accumulator, false for a fragment of A.
    std::vector<uint8_t> accumulates;
    std::deque<Product> flying; // the oldest first
    uint32_t n_done = 0;        // the number of flying[k] is n_done + k + 1
    std::deque<Batch> batches;  // committed, not waited for
    uint64_t n_issued = 0;
    const Inst *last = nullptr; // that was issued
    std::shared_ptr<Sequence> sequence;
    // A bit for each 16 bytes of the block's shared memory that uncommitted products read.
    std::vector<uint64_t> reads;
};

static const Plan &plan_of(const Inst &i)
{
    return *reinterpret_cast<const Plan *>(i.value[0]);
}

static Tile tile_of(uint64_t descriptor, bool transposed)
{
    auto field = [&](uint32_t bit) { return (uint32_t)(descriptor >> bit & 0x3fff) << 4; };
    static const uint32_t wides[] = {1, 8, 4, 2};
    const uint32_t leading = field(16), stride = field(32);
    Tile t = {};
    t.start = field(0);
    t.wide = wides[descriptor >> 62];
    t.row_step = core_bytes * t.wide;
    t.mask = core_bytes * (t.wide - 1);
    const bool swizzled = t.wide > 1;
    t.side = transposed ? t.wide : 1;
    t.side_shift = (uint32_t)__builtin_ctz(t.side);
    t.group_step = transposed && swizzled ? leading : stride;
    t.core_step = !swizzled ? leading : transposed ? stride : core_bytes;
    return t;
}

// Faults where a descriptor is not one of a tile of `groups` groups of lines.
static void check_tile(Warp &w, const Inst &i, char matrix, uint64_t descriptor, bool transposed,
                       uint32_t groups)
{
    const Tile t = tile_of(descriptor, transposed);
    const uint32_t period = 128 * t.wide, row = core_bytes * t.wide;
    constexpr uint64_t unused = 3ull << 14 | 3ull << 30 | 7ull << 46 | 0x3ffull << 52;
    if (descriptor & unused)
        note(w, i, all_lanes, "descriptor 0x%016llx of %c: bits that have no meaning are set",
             (unsigned long long)descriptor, matrix);
    if (t.wide == 1)
        return;
    if (descriptor >> 49 & 7)
        fault(
            w, i, all_lanes,
            "descriptor 0x%016llx of %c: base offset %u, only tiles in swizzle patterns that begin "
            "at a multiple of %u bytes (base offset 0) are emulated",
            (unsigned long long)descriptor, matrix, (uint32_t)(descriptor >> 49 & 7), period);
    if (t.start % period >= row)
        fault(
            w, i, all_lanes,
            "descriptor 0x%016llx of %c: the start address 0x%x is not in the first %u bytes of a "
            "swizzle pattern, which begins at a multiple of %u, and the base offset is 0",
            (unsigned long long)descriptor, matrix, t.start, row, period);
    const uint32_t span = !transposed ? tile_bytes_of_k : core_bytes * std::min(t.side, groups);
    if (t.start % row + span > row)
        fault(
            w, i, all_lanes,
            "descriptor 0x%016llx of %c: %u bytes from the start address 0x%x on reach beyond the "
            "%u bytes of a row of the swizzle pattern",
            (unsigned long long)descriptor, matrix, span, t.start, row);
    if ((groups > t.side && t.group_step % period) || (transposed && t.core_step % period))
        fault(w, i, all_lanes,
              "descriptor 0x%016llx of %c: the step of %u bytes between swizzle patterns is no "
              "multiple of their %u bytes",
              (unsigned long long)descriptor, matrix,
              groups > t.side && t.group_step % period ? t.group_step : t.core_step, period);
}

// Marks what is read of some groups of a tile, whose core matrices are two along k for all types.
static void mark_reads(Warp &w, const Inst &i, char matrix, const Tile &t, uint32_t first,
                       uint32_t groups)
{
    const uint32_t end = (uint32_t)(w.block->shared.size() / core_bytes);
    w.products->reads.resize(end / 64 + 1);
    uint64_t *reads = w.products->reads.data(), bits = 0;
    uint32_t word = 0; // the one that `bits` are of
    for (uint32_t group = first; group < first + groups; group++)
        for (uint32_t core = 0; core < 2; core++)
            for (uint32_t r = 0; r < core_rows; r++) {
                const uint32_t address = t.row(group, core, r);
                const uint32_t at = (address - shared_at) / core_bytes; // great below shared_at
                if (at >= end)
                    fault(w, i, all_lanes,
                          "%c: the shared address 0x%x of its tile is outside of the %zu bytes of "
                          "the block's shared memory, which begin at 0x%x",
                          matrix, address, w.block->shared.size(), shared_at);
                if (at / 64 != word) {
                    reads[word] |= bits;
                    word = at / 64;
                    bits = 0;
                }
                bits |= 1ull << at % 64;
            }
    reads[word] |= bits;
}

// --- computing ---

// The groups of 8 lines of a tile become panels, in the order of split_lines where that is asked
// for.
static void unpack(const Block &b, const Tile &t, const Element &f, bool transposed, bool splits,
                   uint32_t group, uint32_t depth, double *panel)
{
    const Unpack unpack = !transposed ? f.from_lines : splits ? f.from_k_split : f.from_k;
    for (uint32_t core = 0; core < 2; core++) {
        const unsigned char *rows[core_rows];
        for (uint32_t r = 0; r < core_rows; r++)
            rows[r] = b.shared.data() +
                      (t.row(group, core, splits && !transposed ? split_lines[r] : r) - shared_at);
        unpack(rows, panel + core * depth / 2 * panel_lines);
    }
}

static void unpack_fragment(Warp &w, const Inst &i, const Plan &p, double *a)
{
    for (uint32_t k = 0; k < 4; k++) { // rows g, rows g + 8, then the same at the second half of k
        const uint32_t *words = w.words(i.s[k]);
        const unsigned char *rows[core_rows];
        for (uint32_t g = 0; g < core_rows; g++)
            rows[g] = reinterpret_cast<const unsigned char *>(words + 4 * g);
        p.a->from_lines(rows, a + (k % 2 * p.depth + k / 2 * p.depth / 2) * panel_lines);
    }
}

static void compute(Warp &w, Product &product)
{
    const Inst &i = *product.inst;
    const Plan &p = plan_of(i);
    double a[2 * max_depth_of_product * panel_lines], b[max_depth_of_product * panel_lines];
    if (p.from_registers) {
        unpack_fragment(w, i, p, a);
    } else {
        const Tile t = tile_of(product.a, p.a_transposed);
        for (uint32_t k = 0; k < 2; k++)
            unpack(*w.block, t, *p.a, p.a_transposed, false, w.number % warps_of_group * 2 + k,
                   p.depth, a + k * p.depth * panel_lines);
    }
    if (p.negates)
        for (uint32_t k = 0; k < 2 * p.depth * panel_lines; k++)
            a[k] = -a[k];
    const Tile t = tile_of(product.b, p.b_transposed);
    const uint32_t n_register = 2 * registers_a_panel(p.sum);
    for (uint32_t group = 0; group < p.n / 8; group++) {
        uint32_t *d[4];
        unpack(*w.block, t, *p.b, p.b_transposed, true, group, p.depth, b);
        for (uint32_t k = 0; k < n_register; k++)
            d[k] = w.words(i.d[group * n_register + k]);
        p.multiply(a, b, 2, p.depth, d, product.adds ? d : nullptr);
    }
    product.done = true;
}

static void compute_up_to(Warp &w, uint32_t number)
{
    Products &all = *w.products;
    for (uint32_t k = 0; all.n_done + k < number; k++)
        if (!all.flying[k].done)
            compute(w, all.flying[k]);
}

// --- registers in flight ---

static const Product &product_of(const Warp &w, Slot unit)
{
    return w.products->flying[w.in_flight[unit] - w.products->n_done - 1];
}

static std::string place(const Warp &w, const Product &p)
{
    return place_of(*w.block->grid->entry, *p.inst);
}

void fault_in_flight(const Warp &w, const Inst &i, Slot unit)
{
    fault(w, i, w.groups[w.running].lanes,
          "a register is touched that is %s of the wgmma.mma_async at %s, for which no "
          "wgmma.wait_group has waited",
          w.products->accumulates[unit] ? "an accumulator" : "in the fragment of A",
          place(w, product_of(w, unit)).c_str());
}

// A register that the product will read or write.
static void check_register(Warp &w, const Inst &i, uint32_t lanes, Slot unit, bool accumulates,
                           uint32_t number)
{
    const char *what = accumulates ? "an accumulator" : "a register of the fragment of A";
    if (!w.fence_epoch)
        fault(w, i, lanes, "there was no wgmma.fence before the first wgmma.mma_async");
    if (w.written[unit] == w.fence_epoch)
        fault(w, i, lanes, "%s was written since the last wgmma.fence", what);
    if (!w.in_flight[unit])
        return;
    if (w.in_flight[unit] == number) { // of this instruction itself: A may have a register twice
        if (accumulates)
            fault(w, i, lanes, "a register is two of the accumulators");
        if (w.products->accumulates[unit])
            fault(w, i, lanes, "a register of the fragment of A is an accumulator as well");
        return;
    }
    const Product &other = product_of(w, unit);
    const Plan &p = plan_of(i), &q = plan_of(*other.inst);
    if (w.products->accumulates[unit] != accumulates)
        fault(w, i, lanes,
              "%s is %s of the wgmma.mma_async at %s, for which no wgmma.wait_group has waited",
              what, accumulates ? "in the fragment of A" : "an accumulator",
              place(w, other).c_str());
    if (accumulates && (p.n != q.n || p.depth != q.depth))
        fault(w, i, lanes,
              "%s is one of the wgmma.mma_async at %s as well, for which no wgmma.wait_group has "
              "waited and which has another shape (m64n%uk%u)",
              what, place(w, other).c_str(), q.n, q.depth);
}

// Registers of a product that is issued.
static void fly(Warp &w, const Inst &i, uint32_t lanes, const Slot *units, uint32_t n,
                bool accumulates, uint32_t number)
{
    uint8_t *role = w.products->accumulates.data();
    uint32_t checked = 0; // the number of a product in flight that may have them as well
    for (uint32_t k = 0; k < n; k++) {
        const Slot unit = units[k];
        const uint32_t now = w.in_flight[unit];
        if (w.written[unit] == w.fence_epoch ||
            (now && (now != checked || role[unit] != accumulates))) {
            check_register(w, i, lanes, unit, accumulates, number);
            checked = now;
        }
        w.n_in_flight += !now;
        w.in_flight[unit] = number;
        role[unit] = accumulates;
    }
}

static void land(Warp &w, const Product &product, uint32_t number)
{
    auto of = [&](Slot unit) {
        if (w.in_flight[unit] != number)
            return;
        w.in_flight[unit] = 0;
        w.n_in_flight--;
    };
    const Inst &i = *product.inst;
    for (uint32_t k = 0; k < i.n_d; k++)
        of(i.d[k]);
    for (uint32_t k = 0; k < 4 && plan_of(i).from_registers; k++)
        of(i.s[k]);
}

// --- what must be the same in all warps of a warpgroup ---

static void check_warp(Warp &w, const Inst &i, uint32_t lanes)
{
    const uint32_t first = w.number / warps_of_group * warps_of_group;
    if (first + warps_of_group > w.block->warps.size())
        fault(w, i, lanes,
              "warps %u to %zu are not the four of a warpgroup: the block has %zu warps", first,
              w.block->warps.size() - 1, w.block->warps.size());
}

static Warp *warps_of(Warp &w)
{
    return &w.block->warps[w.number / warps_of_group * warps_of_group];
}

// The warps of a warpgroup issue the same instructions with the same descriptors ("The contents of
// a matrix descriptor must be same across all the warps in the warpgroup").
static void check_sequence(Warp &w, const Inst &i, uint32_t lanes, const Product &mine)
{
    Products &all = *w.products;
    Warp *group = warps_of(w);
    uint64_t slowest = all.n_issued + 1;
    for (uint32_t k = 0; k < warps_of_group; k++)
        if (!all.sequence && group[k].products)
            all.sequence = group[k].products->sequence;
    if (!all.sequence)
        all.sequence = std::make_shared<Sequence>();
    Sequence &s = *all.sequence;
    const uint64_t at = all.n_issued++ - s.first;
    all.last = &i;
    if (at == s.issued.size()) {
        for (uint32_t k = 0; k < warps_of_group; k++)
            if (!~group[k].exited)
                fault(w, i, lanes, "warp %u of the warpgroup has returned without executing it",
                      group[k].number);
        s.issued.push_back(mine);
    }
    const Product &first = s.issued[at];
    if (first.inst != mine.inst)
        fault(w, i, lanes,
              "another warp of the warpgroup has executed the wgmma.mma_async at %s in its place",
              place(w, first).c_str());
    if (first.a != mine.a || first.b != mine.b || first.adds != mine.adds)
        fault(w, i, lanes,
              "the descriptors 0x%016llx, 0x%016llx and scale-d %d are 0x%016llx, 0x%016llx and %d "
              "in another warp of the warpgroup",
              (unsigned long long)mine.a, (unsigned long long)mine.b, mine.adds,
              (unsigned long long)first.a, (unsigned long long)first.b, first.adds);
    for (uint32_t k = 0; k < warps_of_group; k++)
        if (group[k].products)
            slowest = std::min(slowest, group[k].products->n_issued);
    for (; s.first < slowest; s.first++)
        s.issued.pop_front();
}

// --- wgmma.mma_async ---

static uint64_t uniform(Warp &w, const Inst &i, uint32_t source, char matrix)
{
    const uint64_t *values = w.longs(i.s[source]);
    for (uint32_t k = 1; k < warp_lanes; k++)
        if (values[k] != values[0])
            fault(w, i, 1u << k, "the descriptor of %c is 0x%016llx, and 0x%016llx in lane 0",
                  matrix, (unsigned long long)values[k], (unsigned long long)values[0]);
    return values[0];
}

static bool adds(Warp &w, const Inst &i, const Plan &p)
{
    if (!p.scales)
        return p.scale_d;
    const uint32_t mask = w.mask(i.s[i.n_s - 1]);
    if (mask && ~mask)
        fault(w, i, mask, "scale-d is not the same in all lanes");
    return !mask == p.scale_not;
}

static void check_sources(Warp &w, const Inst &i)
{
    for (uint32_t k = 0; k < i.n_s; k++)
        if (~w.defined[i.s[k]])
            fault(w, i, ~w.defined[i.s[k]],
                  "source %u (of %u, behind the accumulators, elements counted) is a register that "
                  "was never written",
                  k + 1, i.n_s);
}

static void check_accumulators(Warp &w, const Inst &i)
{
    for (uint32_t k = 0; k < i.n_d; k++)
        if (~w.defined[i.d[k]])
            fault(w, i, ~w.defined[i.d[k]], "accumulator %u was never written, and scale-d is true",
                  k);
}

static Next mma_async(Warp &w, const Inst &i, uint32_t lanes)
{
    if (!whole_warp(w, i, lanes))
        return Next::wait;
    check_warp(w, i, lanes);
    const Plan &p = plan_of(i);
    Products &all = *w.products;
    const uint32_t n_a = p.from_registers ? 4 : 1;
    check_sources(w, i);
    const uint32_t number = all.n_done + (uint32_t)all.flying.size() + 1;
    Product product = {&i, 0, uniform(w, i, n_a, 'B'), adds(w, i, p), false};
    if (!p.from_registers)
        product.a = uniform(w, i, 0, 'A');
    if (product.adds)
        check_accumulators(w, i);
    check_sequence(w, i, lanes, product);
    if (!p.from_registers) {
        check_tile(w, i, 'A', product.a, p.a_transposed, groups_of_a);
        mark_reads(w, i, 'A', tile_of(product.a, p.a_transposed), w.number % warps_of_group * 2, 2);
    }
    check_tile(w, i, 'B', product.b, p.b_transposed, p.n / 8);
    mark_reads(w, i, 'B', tile_of(product.b, p.b_transposed), 0, p.n / 8);
    fly(w, i, lanes, i.d, i.n_d, true, number);
    if (p.from_registers)
        fly(w, i, lanes, i.s, 4, false, number);
    for (uint32_t k = 0; k < i.n_d; k++)
        w.defined[i.d[k]] = all_lanes;
    all.flying.push_back(product);
    if (!in_order() && random_below(2))
        compute_up_to(w, number);
    return Next::on;
}

// --- wgmma.fence, wgmma.commit_group, wgmma.wait_group ---

static Next fence(Warp &w, const Inst &i, uint32_t lanes)
{
    if (!whole_warp(w, i, lanes))
        return Next::wait;
    check_warp(w, i, lanes);
    w.fence_epoch++;
    return Next::on;
}

// Declares what the products of a group read, each stretch of shared memory once.
static void declare_reads(Warp &w, const Inst &i, std::vector<uint64_t> &hazards)
{
    std::vector<uint64_t> &reads = w.products->reads;
    auto is_read = [&](size_t k) { return reads[k / 64] >> k % 64 & 1; };
    const size_t end = reads.size() * 64;
    for (size_t k = 0; k < end;) {
        if (!is_read(k)) {
            k = reads[k / 64] >> k % 64 ? k + 1 : (k / 64 + 1) * 64;
            continue;
        }
        const size_t first = k;
        while (k < end && is_read(k))
            k++;
        const uint32_t offset = (uint32_t)first * core_bytes;
        const uint32_t bytes = (uint32_t)(k - first) * core_bytes;
        touch_async(w, i, *w.block, offset, bytes, 0, false);
        hazards.push_back(
            begin_hazard(*w.block, Hazard::read, offset, bytes, i, "wgmma.mma_async"));
    }
    std::fill(reads.begin(), reads.end(), 0);
}

static Next commit_group(Warp &w, const Inst &i, uint32_t lanes)
{
    if (!whole_warp(w, i, lanes))
        return Next::wait;
    check_warp(w, i, lanes);
    Products &all = *w.products;
    Batch batch = {all.n_done + (uint32_t)all.flying.size(), {}};
    if (!all.flying.empty())
        declare_reads(w, *all.flying.back().inst, batch.hazards);
    all.batches.push_back(std::move(batch));
    return Next::on;
}

static Next wait_group(Warp &w, const Inst &i, uint32_t lanes)
{
    if (!whole_warp(w, i, lanes))
        return Next::wait;
    check_warp(w, i, lanes);
    Products &all = *w.products;
    while (all.batches.size() > (uint64_t)i.value[0]) {
        const Batch &oldest = all.batches.front();
        compute_up_to(w, oldest.last);
        while (all.n_done < oldest.last) {
            land(w, all.flying.front(), all.n_done + 1);
            all.flying.pop_front();
            all.n_done++;
        }
        for (uint64_t hazard : oldest.hazards)
            end_hazard(*w.block, hazard);
        all.batches.pop_front();
    }
    return Next::on;
}

// --- beginning and end of warps ---

void begin_products(Warp &w)
{
    w.fence_epoch = 0; // no fence yet
    w.n_in_flight = 0;
    w.products = std::make_shared<Products>();
    w.products->accumulates.resize(w.block->grid->entry->n_unit);
}

void end_products(Warp &w, const Inst *last)
{
    if (!w.products)
        return;
    const Products &all = *w.products;
    if (!all.flying.empty())
        fault(w, last ? *last : *all.flying.front().inst, all_lanes,
              "the warp ends, and no wgmma.wait_group has waited for the wgmma.mma_async at %s",
              place(w, all.flying.front()).c_str());
    const Warp *group = warps_of(w);
    for (uint32_t k = 0; k < warps_of_group && all.last; k++)
        if (group[k].products && !~group[k].exited && group[k].products->n_issued != all.n_issued)
            fault(w, last ? *last : *all.last, all_lanes,
                  "the warp has executed %llu wgmma.mma_async, warp %u of the warpgroup %llu",
                  (unsigned long long)all.n_issued, group[k].number,
                  (unsigned long long)group[k].products->n_issued);
    w.products = nullptr;
    w.n_in_flight = 0;
}

// --- decoding ---

// "m64nNkK": N is a multiple of 8 up to 256; of integers 24 or a multiple of 16, or 8 ("Matrix
// Shape").
static bool take_shape(Statement &s, Plan *p)
{
    for (size_t k = 0; k < s.words.size(); k++) {
        int length = 0;
        if (sscanf(s.words[k].c_str(), "m64n%3uk%3u%n", &p->n, &p->depth, &length) != 2 ||
            (size_t)length != s.words[k].size())
            continue;
        s.words.erase(s.words.begin() + (ptrdiff_t)k);
        return true;
    }
    return false;
}

static bool is_known(const Plan &p)
{
    if (!p.a || !p.b || p.depth * p.a->bytes != tile_bytes_of_k)
        return false;
    if (p.n < 8 || p.n > 256 || p.n % 8)
        return false;
    switch (p.a->type) {
    case Type::f16:
        return p.b == p.a && (p.sum == Type::f16 || p.sum == Type::f32);
    case Type::bf16:
    case Type::tf32:
        return p.b == p.a && p.sum == Type::f32;
    case Type::e4m3:
    case Type::e5m2:
        return (p.b->type == Type::e4m3 || p.b->type == Type::e5m2) &&
               (p.sum == Type::f16 || p.sum == Type::f32);
    default:
        return is_integer(p.b->type) && p.sum == Type::s32 && (p.n % 16 == 0 || p.n <= 24);
    }
}

static int64_t immediate_of(Statement &s, size_t k, const char *what, int64_t one, int64_t other)
{
    if (!s.is_immediate(k))
        s.refuse("%s must be %lld or %lld", what, (long long)one, (long long)other);
    const int64_t value = s.immediate(k);
    if (value != one && value != other)
        s.refuse("%s must be %lld or %lld", what, (long long)one, (long long)other);
    return value;
}

// "d, a, b-desc, scale-d, imm-scale-a, imm-scale-b, imm-trans-a, imm-trans-b"; a is a descriptor or
// four registers, which have no imm-trans-a; the last two are of 16-bit types, the last four of
// floats.
static void take_operands(Statement &s, Plan *p)
{
    const Type in_register = p->sum == Type::f16 ? Type::b32 : p->sum;
    const size_t n_d = s.targets(0, in_register), want = p->n / 4 * registers_a_panel(p->sum);
    if (n_d != want)
        s.refuse("%zu accumulators, it has %zu", n_d, want);
    p->from_registers = s.name(1) == "{";
    if (!p->from_registers)
        s.source(1, Type::b64);
    else if (s.sources(1, Type::b32) != 4)
        s.refuse("%zu registers with the fragment of A, it has 4", s.n_element(1));
    s.source(2, Type::b64);
    p->scales = !s.is_immediate(3);
    if (p->scales)
        s.source_pred(3, &p->scale_not);
    else
        p->scale_d = immediate_of(s, 3, "scale-d", 0, 1);
    if (p->sum == Type::s32)
        return;
    const int64_t scale_a = immediate_of(s, 4, "imm-scale-a", 1, -1);
    p->negates = scale_a != immediate_of(s, 5, "imm-scale-b", 1, -1);
    if (p->a->bytes != 2)
        return;
    size_t k = 6;
    p->a_transposed = !p->from_registers && immediate_of(s, k++, "imm-trans-a", 0, 1);
    p->b_transposed = immediate_of(s, k, "imm-trans-b", 0, 1);
}

static Run decode_product(Statement &s)
{
    Plan p = {};
    if (!take_shape(s, &p))
        s.refuse("a shape .m64nNkK is expected");
    const bool saturates = s.take("satfinite");
    p.sum = s.take_type();
    p.a = element_of(s.take_type());
    p.b = element_of(s.take_type());
    if (!is_known(p))
        s.refuse("there is no product of these types and this shape, or it is not emulated");
    if (saturates && p.sum != Type::s32)
        s.refuse(".satfinite is for integers");
    p.multiply = multiply_of(p.sum, saturates);
    take_operands(s, &p);
    s.inst.value[0] = (int64_t)s.keep(p);
    return mma_async;
}

static Run decode_wait(Statement &s)
{
    s.inst.value[0] = s.immediate(0);
    if (s.inst.value[0] < 0)
        s.refuse("a number of groups is expected");
    return wait_group;
}

static Run decode(Statement &s)
{
    s.entry().wgmma = s.inst.wgmma = s.inst.own_defined = true;
    const int which = s.must_take_of({"fence", "commit_group", "wait_group", "mma_async"});
    take_aligned(s);
    switch (which) {
    case 0:
        return fence;
    case 1:
        return commit_group;
    case 2:
        return decode_wait(s);
    default:
        return decode_product(s);
    }
}

const Operation warpgroups[] = {{"wgmma", decode}, {nullptr, nullptr}};
} // namespace ptx
