// Matrices of a warp: ldmatrix, stmatrix, movmatrix, mma ("Matrix multiply-accumulate operation
// using mma instruction").
#include <algorithm>

#include "products.hpp"

namespace ptx
{
// --- ldmatrix, stmatrix: "Warp-level matrix load instruction", "Warp-level matrix store
// instruction" ---

// The row of 16 bytes whose address a lane has: source 0, offset in value[0], value[1] tells 64
// bits.
static unsigned char *row_of(Warp &w, const Inst &i, uint32_t lane, bool write)
{
    uint64_t address = address_of(w, i, 0, 0, lane, i.value[1]);
    if (i.space == Space::generic) {
        if ((address - shared_window) >> 32)
            fault(w, i, 1u << lane, "the generic address 0x%llx is not in shared memory",
                  (unsigned long long)address);
        address -= shared_window;
    }
    const SharedPlace p = reach_shared(w, i, address, core_bytes, core_bytes, lane);
    if (p.block != w.block)
        fault(w, i, 1u << lane, "the address 0x%llx is in the shared memory of another block",
              (unsigned long long)address);
    touch_shared(w, i, p, core_bytes, lane, write);
    return p.block->shared.data() + p.offset;
}

// Finds the rows of n matrices: lane 8 m + r gives the address of row r of matrix m; other lanes'
// are ignored.
static void rows_of(Warp &w, const Inst &i, uint32_t n, bool write, unsigned char **rows)
{
    const uint32_t used = n * core_rows == 32 ? all_lanes : (1u << n * core_rows) - 1;
    const uint32_t undefined = used & ~w.defined[i.s[0]];
    if (undefined)
        fault(w, i, undefined, "the address was never written");
    for (uint32_t lane = 0; lane < n * core_rows; lane++)
        rows[lane] = row_of(w, i, lane, write);
}

template <uint32_t n, bool transposed>
static Next load_matrices(Warp &w, const Inst &i, uint32_t lanes)
{
    unsigned char *rows[32];
    if (!whole_warp(w, i, lanes))
        return Next::wait;
    rows_of(w, i, n, false, rows);
    for (uint32_t m = 0; m < n; m++) {
        uint32_t *to = w.words(i.d[m]);
        if (transposed)
            transpose_core(rows + m * core_rows, reinterpret_cast<uint16_t *>(to));
        else
            for (uint32_t r = 0; r < core_rows; r++)
                memcpy(to + 4 * r, rows[m * core_rows + r], core_bytes);
        w.defined[i.d[m]] |= lanes;
    }
    return Next::on;
}

template <uint32_t n, bool transposed>
static Next store_matrices(Warp &w, const Inst &i, uint32_t lanes)
{
    unsigned char *rows[32];
    if (!whole_warp(w, i, lanes))
        return Next::wait;
    for (uint32_t m = 0; m < n; m++)
        if (lanes & ~w.defined[i.s[1 + m]])
            fault(w, i, lanes & ~w.defined[i.s[1 + m]], "matrix %u is in a register never written",
                  m);
    rows_of(w, i, n, true, rows);
    for (uint32_t m = 0; m < n; m++) {
        const unsigned char *from = reinterpret_cast<unsigned char *>(w.words(i.s[1 + m]));
        const unsigned char *core[core_rows];
        uint16_t turned[64];
        for (uint32_t r = 0; r < core_rows; r++)
            core[r] = from + core_bytes * r;
        if (transposed) {
            transpose_core(core, turned);
            from = reinterpret_cast<unsigned char *>(turned);
        }
        for (uint32_t r = 0; r < core_rows; r++)
            memcpy(rows[m * core_rows + r], from + core_bytes * r, core_bytes);
    }
    happened(*w.block->grid);
    return Next::on;
}

static const Run loads[3][2] = {{load_matrices<1, false>, load_matrices<1, true>},
                                {load_matrices<2, false>, load_matrices<2, true>},
                                {load_matrices<4, false>, load_matrices<4, true>}};
static const Run stores[3][2] = {{store_matrices<1, false>, store_matrices<1, true>},
                                 {store_matrices<2, false>, store_matrices<2, true>},
                                 {store_matrices<4, false>, store_matrices<4, true>}};

// "ldmatrix.sync.aligned.m8n8.num{.trans}{.shared{::cta}}.b16 r, [p]"; of stmatrix "[p], r".
static Run decode_rows(Statement &s, bool store)
{
    take_aligned(s);
    if (!s.take("m8n8") || !s.take("b16"))
        s.refuse(".m8n8 with .b16 is expected, the other shapes are not emulated");
    const int num = s.must_take_of({"x1", "x2", "x4"});
    const bool transposed = s.take("trans");
    s.inst.space = s.take_of({"shared", "shared::cta"}) >= 0 ? Space::shared : Space::generic;
    const Space space = s.inst.space;
    size_t n = store ? 0 : s.targets(0, Type::b32);
    s.inst.value[1] = s.address(store ? 0 : 1, 0) == 64;
    if (store)
        n = s.sources(1, Type::b32);
    if (n != 1u << num)
        s.refuse("%zu registers, .x%u has %u", n, 1u << num, 1u << num);
    if (s.inst.space != space)
        s.refuse("the variable is not in shared memory");
    s.inst.own_defined = true; // and its sources are looked at where they count
    return (store ? stores : loads)[num][transposed];
}
static Run decode_load(Statement &s)
{
    return decode_rows(s, false);
}
static Run decode_store(Statement &s)
{
    return decode_rows(s, true);
}

// --- movmatrix: "Warp-level matrix transpose instruction" ---

static Next move_matrix(Warp &w, const Inst &i, uint32_t lanes)
{
    if (!whole_warp(w, i, lanes))
        return Next::wait;
    const unsigned char *from = reinterpret_cast<unsigned char *>(w.words(i.s[0]));
    const unsigned char *rows[core_rows];
    uint16_t turned[64];
    for (uint32_t r = 0; r < core_rows; r++)
        rows[r] = from + core_bytes * r;
    transpose_core(rows, turned);
    memcpy(w.words(i.d[0]), turned, sizeof turned);
    return Next::on;
}

static Run decode_move(Statement &s)
{
    take_aligned(s);
    if (!s.take("m8n8") || !s.take("trans") || !s.take("b16"))
        s.refuse(".m8n8.trans.b16 is expected");
    s.target(0, Type::b32);
    s.source(1, Type::b32);
    s.inst.strict = true;
    return move_matrix;
}

// --- mma: "Multiply-and-Accumulate Instruction: mma" ---

namespace
{
struct Plan {
    const Element *a, *b;
    Multiply multiply;
    uint32_t n_panel;    // of 8 rows of A and D
    uint32_t n_core;     // core matrices along k
    uint32_t depth;      // k
    uint32_t n_register; // of C and D
};
} // namespace

static Next multiply_fragments(Warp &w, const Inst &i, uint32_t lanes)
{
    if (!whole_warp(w, i, lanes))
        return Next::wait;
    const Plan &p = *reinterpret_cast<const Plan *>(i.value[0]);
    double a[2 * max_depth_of_product * panel_lines], b[max_depth_of_product * panel_lines];
    const unsigned char *rows[core_rows];
    const uint32_t n_a = p.n_panel * p.n_core, core_depth = p.depth / p.n_core;
    for (uint32_t r = 0; r < n_a;
         r++) { // registers: rows g, rows g + 8, then the same at the next k
        const uint32_t *words = w.words(i.s[r]);
        for (uint32_t g = 0; g < core_rows; g++)
            rows[g] = reinterpret_cast<const unsigned char *>(words + 4 * g);
        p.a->from_lines(rows,
                        a + (r % p.n_panel * p.depth + r / p.n_panel * core_depth) * panel_lines);
    }
    for (uint32_t r = 0; r < p.n_core; r++) {
        const uint32_t *words = w.words(i.s[n_a + r]);
        for (uint32_t g = 0; g < core_rows; g++)
            rows[g] = reinterpret_cast<const unsigned char *>(words + 4 * split_lines[g]);
        p.b->from_lines(rows, b + r * core_depth * panel_lines);
    }
    uint32_t c[4][32], *d[4]; // a copy: the registers of D may be those of C in another order
    const uint32_t *from[4];
    for (uint32_t r = 0; r < p.n_register; r++) {
        memcpy(c[r], w.words(i.s[n_a + p.n_core + r]), sizeof c[r]);
        from[r] = c[r];
        d[r] = w.words(i.d[r]);
    }
    p.multiply(a, b, p.n_panel, p.depth, d, from);
    return Next::on;
}

// True if mma has a product of these types: "Matrix Data-types" and "Syntax" of mma, without .f64,
// 4-bit and single-bit types.
static bool is_known(Type d, const Element *a, const Element *b, Type c)
{
    if (!a || !b || d != c)
        return false;
    switch (a->type) {
    case Type::f16:
        return b == a && (d == Type::f16 || d == Type::f32);
    case Type::bf16:
    case Type::tf32:
        return b == a && d == Type::f32;
    case Type::e4m3:
    case Type::e5m2:
        return (b->type == Type::e4m3 || b->type == Type::e5m2) &&
               (d == Type::f16 || d == Type::f32);
    default:
        return is_integer(b->type) && d == Type::s32;
    }
}

static Run decode_mma(Statement &s)
{
    take_aligned(s);
    static const uint32_t m[] = {16, 16, 16, 16, 8}, k[] = {4, 8, 16, 32, 16};
    const int shape = s.must_take_of({"m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32", "m8n8k16"});
    const auto row = std::find(s.words.begin(), s.words.end(), "row");
    if (std::find(row, s.words.end(), "col") == s.words.end())
        s.refuse(".row.col is expected");
    s.take("row");
    s.take("col");
    const bool saturates = s.take("satfinite");
    const Type d = s.take_type();
    const Element *a = element_of(s.take_type()), *b = element_of(s.take_type());
    const Type c = s.take_type();
    const bool integer = d == Type::s32;
    const uint32_t bytes = a ? k[shape] * a->bytes : 0; // of a line
    if (!is_known(d, a, b, c) || (bytes != 16 && bytes != 32) || (m[shape] == 8 && !integer))
        s.refuse("there is no product of these types and this shape, or it is not emulated");
    if (saturates && !integer)
        s.refuse(".satfinite is for integers");
    Plan p = {a, b, multiply_of(d, saturates), m[shape] / 8, bytes / core_bytes, k[shape], 0};
    p.n_register = p.n_panel * registers_a_panel(d);
    const Type in_register = d == Type::f16 ? Type::b32 : d;
    const size_t n_d = s.targets(0, in_register), n_a = s.sources(1, Type::b32);
    const size_t n_b = s.sources(2, Type::b32), n_c = s.sources(3, in_register);
    if (n_d != p.n_register || n_a != p.n_panel * p.n_core || n_b != p.n_core ||
        n_c != p.n_register)
        s.refuse("%zu, %zu, %zu and %zu registers, it has %u, %u, %u and %u", n_d, n_a, n_b, n_c,
                 p.n_register, p.n_panel * p.n_core, p.n_core, p.n_register);
    s.inst.value[0] = (int64_t)s.keep(p);
    s.inst.strict = true;
    return multiply_fragments;
}

const Operation matrices[] = {{"ldmatrix", decode_load},
                              {"stmatrix", decode_store},
                              {"movmatrix", decode_move},
                              {"mma", decode_mma},
                              {nullptr, nullptr}};
} // namespace ptx
