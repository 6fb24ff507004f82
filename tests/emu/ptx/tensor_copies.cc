// Copies of boxes of tensors, and the maps that describe the tensors.
//
// Source: PTX ISA 9, "Tensors"; "Data Movement and Conversion Instructions": cp.async.bulk.tensor,
// cp.reduce.async.bulk.tensor, cp.async.bulk.prefetch.tensor, tensormap.replace,
// tensormap.cp_fenceproxy. CUDA Driver API, "Tensor Map Object Management": what a map has to
// fulfil.
#include <algorithm>

#include "asynchronous.hpp"
#include "tests/emu/tensor_map.h"

namespace ptx
{
// --- maps ---

// CUtensorMapDataType in its order: bytes, and the type of reductions; none: a copy changes the
// elements (flushed, rounded), which is not emulated.
static const struct {
    uint8_t bytes;
    Type type;
} elements[] = {
    {1, Type::u8},   {2, Type::u16},  {4, Type::u32},  {4, Type::s32}, {8, Type::u64},
    {8, Type::s64},  {2, Type::f16},  {4, Type::f32},  {8, Type::f64}, {2, Type::bf16},
    {4, Type::none}, {4, Type::none}, {4, Type::none},
};
constexpr size_t n_element_type = sizeof elements / sizeof elements[0];

static const char *bad_extents(const emu_tensor_map &m)
{
    for (uint32_t k = 0; k < m.rank; k++) {
        if (m.box[k] < 1 || m.box[k] > 256)
            return "an extent of the box is not 1 .. 256";
        if (k && (m.element_stride[k] < 1 || m.element_stride[k] > 8))
            return "an element stride is not 1 .. 8";
        if (k && (m.stride[k - 1] % 16 || m.stride[k - 1] >= 1ull << 40))
            return "a stride is no multiple of 16 bytes below 2^40";
    }
    const uint32_t inner = m.box[0] * m.element_bytes;
    if (inner % 16)
        return "the inner extent of the box is no multiple of 16 bytes";
    if (m.swizzle && inner > 16u << m.swizzle)
        return "the inner extent of the box is greater than the swizzle";
    return nullptr;
}

// Why a map cannot be used; null: it can.
static const char *bad_map(const emu_tensor_map &m, uint32_t n_dim)
{
    if (m.magic != EMU_TENSOR_MAP_MAGIC)
        return "there is no tensor map";
    if (m.rank != n_dim)
        return "the map has another number of dimensions than the instruction";
    if (m.interleave)
        return "interleaved layouts are not emulated";
    if (m.fill)
        return "fills other than zero are not emulated";
    if (m.type >= n_element_type || elements[m.type].type == Type::none)
        return "elements that a copy rounds or flushes are not emulated";
    if (m.swizzle > EMU_SWIZZLE_128B)
        return "the swizzle is not known";
    if (!m.base || m.base % 16)
        return "the tensor's address is not aligned to 16 bytes";
    return bad_extents(m);
}

static emu_tensor_map map_at(Warp &w, const Inst &i, const AddressOperand &a, uint32_t n_dim,
                             uint32_t lane)
{
    const uint64_t addr = address_in(w, i, a, lane);
    if (addr >> 60)
        fault(w, i, 1u << lane,
              "the tensor map at generic address 0x%llx is not in param, const or global space",
              (unsigned long long)addr);
    emu_tensor_map m;
    memcpy(&m, reach(w, i, Space::generic, addr, sizeof m, 64, lane, Access::read), sizeof m);
    if (const char *why = bad_map(m, n_dim))
        fault(w, i, 1u << lane, "the tensor map at 0x%llx: %s", (unsigned long long)addr, why);
    return m;
}

// --- boxes ---

namespace
{
constexpr uint32_t max_dim = 5;

struct Form {
    AddressOperand map, shared, mbarrier;
    uint8_t n_dim, coordinates; // the first source
    int mask;                   // source; -1: no multicast
    Window window;              // of `shared` and `mbarrier`
    const char *op;             // of a reduction
    const char *what;
};

// The rows of a box that are in the tensor.
class Walk
{
  public:
    Walk(Warp &warp, const Inst &inst, const Form &f, const emu_tensor_map &map, uint32_t in_lane,
         Access a)
        : w(warp), i(inst), m(map), lane(in_lane), how(a), rows(std::make_shared<Rows>())
    {
        for (uint32_t k = 0; k < m.rank; k++)
            start[k] = (int32_t)word_in(w, i, (uint8_t)(f.coordinates + k), lane);
        first = std::max<int64_t>(0, -start[0]);
        end = std::min<int64_t>(m.box[0], m.last[0] + 1ll - start[0]);
        dimension(m.rank - 1u, m.base, true);
        rows->bytes = at;
    }
    std::shared_ptr<const Rows> result() const
    {
        return rows;
    }

  private:
    Warp &w;
    const Inst &i;
    const emu_tensor_map &m;
    const uint32_t lane;
    const Access how;
    int64_t start[max_dim], first, end; // of a row, the elements that are in the tensor
    uint32_t at = 0;                    // bytes of the box so far
    std::shared_ptr<Rows> rows;

    // The elements of dimensions 0 .. k, from the address of the first one of dimension k + 1 on.
    void dimension(uint32_t k, uint64_t address, bool inside)
    {
        if (!k) {
            row(address, inside);
            return;
        }
        for (int64_t n = 0; n < m.box[k]; n += m.element_stride[k]) {
            const int64_t c = start[k] + n;
            dimension(k - 1, address + (uint64_t)c * m.stride[k - 1],
                      inside && c >= 0 && c <= m.last[k]);
        }
    }
    void row(uint64_t address, bool inside)
    {
        if (inside && first < end) {
            const uint32_t bytes = (uint32_t)(end - first) * m.element_bytes;
            address += (uint64_t)(start[0] + first) * m.element_bytes;
            rows->rows.push_back(
                {reach(w, i, Space::global, address, bytes, m.element_bytes, lane, how),
                 at + (uint32_t)first * m.element_bytes, bytes});
        }
        at += (uint32_t)m.box[0] * m.element_bytes;
    }
};
} // namespace

static Next load(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        const emu_tensor_map m = map_at(w, i, f.map, f.n_dim, lane);
        const auto rows = Walk(w, i, f, m, lane, Access::read).result();
        const SharedPlace to = place_in(w, i, f.shared, f.window, rows->bytes, 128, lane);
        const SharedPlace mbarrier = place_in(w, i, f.mbarrier, f.window, 8, 8, lane);
        if (f.mask < 0 && to.block != mbarrier.block)
            fault(w, i, 1u << lane, "the mbarrier is not in the block of the destination");
        each_target(w, i, lane, f.mask, to, mbarrier, [&](SharedPlace at, SharedPlace reports) {
            start_load({w, i, lane, f.what}, rows, {at, rows->bytes, m.swizzle}, reports);
        });
    });
    return Next::on;
}

static Reduce reduction(Warp &w, const Inst &i, const Form &f, const emu_tensor_map &m,
                        uint32_t lane)
{
    Type t = elements[m.type].type;
    if (f.op[0] == 'a' ? f.op[1] == 'n' : f.op[0] == 'o' || f.op[0] == 'x') // of bits
        t = !is_integer(t) ? Type::none : m.element_bytes == 4 ? Type::b32 : Type::b64;
    const bool has = elements[m.type].type != Type::f64 && m.element_bytes > 1 && t != Type::none;
    const Reduce reduce = has ? reduce_of(f.op, t, false) : nullptr;
    if (!reduce)
        fault(w, i, 1u << lane, "there is no reduction .%s of elements of type %s", f.op,
              name_of(elements[m.type].type));
    return reduce;
}

static Next store(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        const emu_tensor_map m = map_at(w, i, f.map, f.n_dim, lane);
        const Reduce reduce = f.op ? reduction(w, i, f, m, lane) : nullptr;
        const auto rows = Walk(w, i, f, m, lane, Access::write).result();
        const SharedPlace from = place_in(w, i, f.shared, Window::cta, rows->bytes, 128, lane);
        add_to_group(
            w, lane,
            start_store({w, i, lane, f.what}, rows, {from, rows->bytes, m.swizzle}, reduce));
    });
    return Next::on;
}

// The map is one, and what it describes is in bounds.
static Next prefetch(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        const emu_tensor_map m = map_at(w, i, f.map, f.n_dim, lane);
        Walk(w, i, f, m, lane, Access::read);
    });
    return Next::on;
}

// --- decoders of copies ---

static uint8_t take_dimensions(Statement &s)
{
    const int n = s.must_take_of({"1d", "2d", "3d", "4d", "5d"}) + 1;
    for (const std::string &word : s.words)
        if (!word.rfind("im2col", 0) || !word.rfind("tile::", 0) || !word.rfind("cta_group::", 0))
            s.refuse(".%s is not emulated", word.c_str());
    s.take("tile");
    return (uint8_t)n;
}

static void ask_map(Statement &s, Asker &ask, Form &f, size_t k)
{
    f.map = ask.address(k);
    f.coordinates = ask.n;
    const size_t n = s.coordinates(k);
    if (n != f.n_dim)
        s.refuse("%zu coordinates for %u dimensions", n, f.n_dim);
    ask.n = (uint8_t)(ask.n + n);
}

static const char *take_op(Statement &s)
{
    static const char *const ops[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
    return ops[s.must_take_of({"add", "min", "max", "inc", "dec", "and", "or", "xor"})];
}

static Run decode_store(Statement &s, Form &f)
{
    if (!s.take("bulk_group"))
        s.refuse(".bulk_group is expected");
    Asker ask = {s};
    ask_map(s, ask, f, 0);
    f.shared = ask.address(1);
    if (s.take("L2::cache_hint"))
        ask.source(2, Type::b64);
    keep_form(s, f);
    return store;
}

Run decode_tensor(Statement &s, bool reduce)
{
    Form f = {};
    f.mask = -1;
    f.n_dim = take_dimensions(s);
    f.what = reduce ? "cp.reduce.async.bulk.tensor" : "cp.async.bulk.tensor";
    const Direction direction = take_direction(s);
    s.entry().async_proxy = true;
    if (reduce)
        f.op = take_op(s);
    if (direction == Direction::cta_to_global)
        return decode_store(s, f);
    if (reduce || direction == Direction::cta_to_cluster)
        s.refuse("this direction is not possible");
    if (!s.take("mbarrier::complete_tx::bytes"))
        s.refuse(".mbarrier::complete_tx::bytes is expected");
    f.window = direction == Direction::global_to_cta ? Window::cta : Window::cluster;
    Asker ask = {s};
    f.shared = ask.address(0);
    ask_map(s, ask, f, 1);
    f.mbarrier = ask.address(2);
    size_t k = 3;
    if (f.window == Window::cluster && s.take("multicast::cluster"))
        f.mask = ask.source(k++, Type::b16);
    if (s.take("L2::cache_hint"))
        ask.source(k, Type::b64);
    keep_form(s, f);
    return load;
}

Run decode_tensor_prefetch(Statement &s)
{
    Form f = {};
    f.n_dim = take_dimensions(s);
    if (!s.take("L2") || !s.take("global"))
        s.refuse(".L2.global is expected");
    Asker ask = {s};
    ask_map(s, ask, f, 0);
    if (s.take("L2::cache_hint"))
        ask.source(1, Type::b64);
    keep_form(s, f);
    return prefetch;
}

// --- tensormap.replace ---

namespace
{
enum Field {
    global_address,
    rank,
    box_dim,
    global_dim,
    global_stride,
    element_stride,
    elemtype,
    interleave_layout,
    swizzle_mode,
    fill_mode
};
struct ReplaceForm {
    AddressOperand at;
    Space space;
    Field field;
    uint32_t ord;
    int source; // of the new value; -1: it is `value`
    uint64_t value;
};
} // namespace

// Types as ".elemtype" numbers them, as the driver does.
static const uint8_t type_of_elemtype[] = {0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12};

static const char *replace_field(emu_tensor_map &m, const ReplaceForm &f, uint64_t v)
{
    switch (f.field) {
    case global_address:
        m.base = v;
        break;
    case rank:
        if (v >= max_dim)
            return "a rank, less one, is 0 .. 4";
        m.rank = (uint8_t)(v + 1);
        break;
    case box_dim:
        if (v < 1 || v > 256)
            return "an extent of the box is 1 .. 256";
        m.box[f.ord] = (uint16_t)v;
        break;
    case global_dim:
        m.last[f.ord] = (uint32_t)v - 1; // 0: 2^32
        break;
    case global_stride:
        m.stride[f.ord] = v;
        break;
    case element_stride:
        if (v < 1 || v > 8)
            return "an element stride is 1 .. 8";
        m.element_stride[f.ord] = f.ord ? (uint8_t)v : 1;
        break;
    case elemtype:
        m.type = type_of_elemtype[v];
        m.element_bytes = elements[m.type].bytes;
        break;
    case interleave_layout:
        m.interleave = (uint8_t)v;
        break;
    case swizzle_mode:
        m.swizzle = (uint8_t)v;
        break;
    case fill_mode:
        m.fill = (uint8_t)v;
        break;
    }
    return nullptr;
}

// Checks that tensormap.replace has a map to change: one that exists, or zeros, which the first
// replacement makes one of bytes without extents.
static bool is_map(emu_tensor_map &m)
{
    static const emu_tensor_map none = {};
    if (!memcmp(&m, &none, sizeof m)) {
        m.magic = EMU_TENSOR_MAP_MAGIC;
        m.rank = m.element_bytes = 1;
    }
    return m.magic == EMU_TENSOR_MAP_MAGIC;
}

static Next replace(Warp &w, const Inst &i, uint32_t lanes)
{
    const ReplaceForm &f = form_of<ReplaceForm>(i);
    each(lanes, [&](uint32_t lane) {
        const uint64_t addr = address_in(w, i, f.at, lane);
        if (f.space == Space::shared)
            place_in(w, i, f.at, Window::cta, sizeof(emu_tensor_map), 64, lane);
        unsigned char *at =
            reach(w, i, f.space, addr, sizeof(emu_tensor_map), 64, lane, Access::write);
        emu_tensor_map m;
        memcpy(&m, at, sizeof m);
        if (!is_map(m))
            fault(w, i, 1u << lane, "there is no tensor map at 0x%llx, nor 128 zeros",
                  (unsigned long long)addr);
        const bool wide = f.field == global_address || f.field == global_stride;
        const uint64_t v = f.source < 0 ? f.value
                           : wide       ? w.longs(i.s[f.source])[lane]
                                        : word_in(w, i, (uint8_t)f.source, lane);
        if (const char *why = replace_field(m, f, v))
            fault(w, i, 1u << lane, "a value of %llu: %s", (unsigned long long)v, why);
        memcpy(at, &m, sizeof m);
    });
    return Next::on;
}

static Run decode_replace(Statement &s)
{
    ReplaceForm f = {};
    f.field = (Field)s.must_take_of({"global_address", "rank", "box_dim", "global_dim",
                                     "global_stride", "element_stride", "elemtype",
                                     "interleave_layout", "swizzle_mode", "fill_mode"});
    const bool wide = f.field == global_address || f.field == global_stride;
    if (!s.take("tile") || !s.take("b1024") || !s.take(wide ? "b64" : "b32"))
        s.refuse(".tile, .b1024 and .%s are expected", wide ? "b64" : "b32");
    f.space = s.take("shared::cta") ? Space::shared
              : s.take("global")    ? Space::global
                                    : Space::generic;
    Asker ask = {s};
    f.at = ask.address(0);
    f.source = -1;
    size_t k = 1;
    if (f.field >= box_dim && f.field <= element_stride) {
        const int64_t ord = s.immediate(k++);
        if (ord < 0 || ord >= (f.field == global_stride ? 4 : 5))
            s.refuse("a field of dimension %lld", (long long)ord);
        f.ord = (uint32_t)ord;
    }
    if (f.field < elemtype) {
        f.source = ask.source(k, wide ? Type::b64 : Type::b32);
    } else {
        static const uint64_t n_value[] = {n_element_type, 3, 4, 2};
        f.value = (uint64_t)s.immediate(k);
        if (f.value >= n_value[f.field - elemtype])
            s.refuse("a value of %lld is not known", (long long)f.value);
    }
    keep_form(s, f);
    return replace;
}

// --- tensormap.cp_fenceproxy ---

namespace
{
struct CopyForm {
    AddressOperand to, from;
};
} // namespace

static Next copy_map(Warp &w, const Inst &i, uint32_t lanes)
{
    if (!w.all_present(lanes))
        return Next::wait;
    const CopyForm &f = form_of<CopyForm>(i);
    const uint32_t first = (uint32_t)__builtin_ctz(lanes);
    const uint64_t to = address_in(w, i, f.to, first), from = address_in(w, i, f.from, first);
    each(lanes, [&](uint32_t lane) {
        if (address_in(w, i, f.to, lane) != to || address_in(w, i, f.from, lane) != from)
            fault(w, i, lanes, "the lanes of a warp have different addresses");
    });
    const SharedPlace p = place_in(w, i, f.from, Window::cta, 128, 64, first);
    touch_shared(w, i, p, 128, first, false);
    memcpy(reach(w, i, Space::global, to, 128, 64, first, Access::write),
           p.block->shared.data() + p.offset, 128);
    happened(*w.block->grid);
    return Next::on;
}

static Run decode_copy_map(Statement &s)
{
    for (const char *word :
         {"global", "shared::cta", "tensormap::generic", "release", "sync", "aligned"})
        if (!s.take(word))
            s.refuse(".%s is expected", word);
    s.must_take_of({"cta", "cluster", "gpu", "sys"});
    CopyForm f = {};
    Asker ask = {s};
    f.to = ask.address(0);
    f.from = ask.address(1);
    if (s.immediate(2) != 128)
        s.refuse("a size of 128 is expected");
    keep_form(s, f);
    s.inst.collective = true;
    s.inst.aligned = true;
    return copy_map;
}

Run decode_tensormap(Statement &s)
{
    return s.must_take_of({"replace", "cp_fenceproxy"}) == 0 ? decode_replace(s)
                                                             : decode_copy_map(s);
}
} // namespace ptx
