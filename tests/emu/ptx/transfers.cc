// Copies of the asynchronous proxy: what happens between their issue and their end, and the bulk
// copies and reductions.
//
// Source: PTX ISA 9, "Data Movement and Conversion Instructions": cp.async.bulk,
// cp.reduce.async.bulk, cp.async.bulk.prefetch.
#include <math.h>

#include "asynchronous.hpp"
#include "formats.hpp"

namespace ptx
{
// --- boxes in shared memory ---

constexpr uint32_t unit = 16, line = 128; // bytes that a swizzle moves, and does not leave

// Swizzles of 32, 64 and 128 bytes: bits 4 and up of the address, 1, 2 or 3 of them, are combined
// with those 3 places above.
static uint32_t swizzled(uint32_t offset, uint8_t swizzle)
{
    static_assert(shared_at % 1024 == 0, "offsets have the low bits of addresses");
    return offset ^ (offset >> 3 & ((1u << swizzle) - 1) << 4);
}

// f(offset in shared memory, offset in the box, bytes) for the parts of a box.
template <class F> static void each_part(const Box &b, F f)
{
    if (!b.swizzle) {
        f(b.place.offset, 0, b.bytes);
        return;
    }
    for (uint32_t at = 0; at < b.bytes; at += unit)
        f(swizzled(b.place.offset + at, b.swizzle), at, unit);
}
// f(offset in shared memory, bytes) for what it covers: whole lines, and units of the last one.
template <class F> static void each_range(const Box &b, F f)
{
    const uint32_t whole = b.swizzle ? b.bytes / line * line : b.bytes;
    if (whole)
        f(b.place.offset, whole);
    for (uint32_t at = whole; at < b.bytes; at += unit)
        f(swizzled(b.place.offset + at, b.swizzle), unit);
}

// --- transfers ---

namespace
{
class Base
{
  protected:
    Warp &w;
    const Inst &i;
    uint32_t lane;
    const char *what;
    Grid &g;
    struct Declared {
        Block *block;
        uint64_t number;
    };
    std::vector<Declared> declared;

    explicit Base(const Issue &from)
        : w(from.w), i(from.i), lane(from.lane), what(from.what), g(*from.w.block->grid)
    {
    }
    void declare(const Box &b, Hazard kind)
    {
        each_range(b, [&](uint32_t offset, uint32_t bytes) {
            declared.push_back(
                {b.place.block, begin_hazard(*b.place.block, kind, offset, bytes, i, what)});
        });
    }
    void end_declared()
    {
        for (const Declared &d : declared)
            end_hazard(*d.block, d.number);
        declared.clear();
    }
    void check_present(const Block &b, const char *does)
    {
        if (!b.n_present && first_time(g, i, Finding::late_copy))
            note(w, i, 1u << lane,
                 "the copy %s shared memory of a block whose threads have all returned", does);
    }
};

// Global to shared memory.
class Load : public Base
{
  public:
    Load(const Issue &from, std::shared_ptr<const Rows> r, Box box, SharedPlace bar)
        : Base(from), rows(std::move(r)), to(box), mbarrier(bar)
    {
        each_range(to, [&](uint32_t offset, uint32_t bytes) {
            touch_async(w, i, *to.place.block, offset, bytes, lane, true);
            memset(to.place.block->shared.data() + offset, 0xff, bytes);
        });
        declare(to, Hazard::arriving);
    }
    void finish()
    {
        std::vector<unsigned char> bytes(to.bytes);
        for (const Rows::Row &row : rows->rows)
            memcpy(bytes.data() + row.at, row.global, row.bytes);
        unsigned char *shared = to.place.block->shared.data();
        each_part(to, [&](uint32_t offset, uint32_t at, uint32_t n) {
            memcpy(shared + offset, bytes.data() + at, n);
        });
        end_declared();
        check_present(*to.place.block, "writes to");
        mbarrier_complete(w, i, lane, *mbarrier.block, mbarrier.offset, to.bytes);
    }

  private:
    const std::shared_ptr<const Rows> rows;
    const Box to;
    const SharedPlace mbarrier;
};

// Shared to global memory: reads at one time, writes at a later one.
class Store : public Base, public Transfer, public std::enable_shared_from_this<Store>
{
  public:
    Store(const Issue &from_issue, std::shared_ptr<const Rows> r, Box box, Reduce op)
        : Base(from_issue), rows(std::move(r)), from(box), reduce(op)
    {
        each_range(from, [&](uint32_t offset, uint32_t bytes) {
            touch_async(w, i, *from.place.block, offset, bytes, lane, false);
        });
        declare(from, Hazard::read);
    }
    void read() override
    {
        if (is_read)
            return;
        is_read = true;
        take();
        later(g, [self = shared_from_this()] { self->finish(); });
    }
    void finish() override
    {
        if (is_done)
            return;
        if (!is_read)
            take();
        is_read = is_done = true;
        for (const Rows::Row &row : rows->rows)
            if (reduce)
                reduce(row.global, bytes.data() + row.at, row.bytes);
            else
                memcpy(row.global, bytes.data() + row.at, row.bytes);
        bytes.clear();
        happened(g);
    }
    bool is_over() const override
    {
        return is_done;
    }

  private:
    const std::shared_ptr<const Rows> rows;
    const Box from;
    const Reduce reduce;
    std::vector<unsigned char> bytes;
    bool is_read = false, is_done = false;

    void take()
    {
        bytes.resize(from.bytes);
        const unsigned char *shared = from.place.block->shared.data();
        each_part(from, [&](uint32_t offset, uint32_t at, uint32_t n) {
            memcpy(bytes.data() + at, shared + offset, n);
        });
        end_declared();
        check_present(*from.place.block, "reads from");
    }
};

// Shared memory to that of another block.
class Move : public Base
{
  public:
    Move(const Issue &issue, SharedPlace source, SharedPlace target, uint32_t n, SharedPlace bar,
         Reduce op)
        : Base(issue), from({source, n, 0}), to({target, n, 0}), mbarrier(bar), reduce(op)
    {
        touch_async(w, i, *source.block, source.offset, n, lane, false);
        if (reduce) { // others may be on their way
            check_fences(w, i, *target.block, target.offset, n, lane, true);
        } else {
            touch_async(w, i, *target.block, target.offset, n, lane, true);
            memset(target.block->shared.data() + target.offset, 0xff, n);
        }
        declare(from, Hazard::read);
        declare(to, Hazard::arriving);
    }
    void finish()
    {
        const unsigned char *source = from.place.block->shared.data() + from.place.offset;
        unsigned char *target = to.place.block->shared.data() + to.place.offset;
        if (reduce)
            reduce(target, source, to.bytes);
        else
            memcpy(target, source, to.bytes);
        end_declared();
        check_present(*from.place.block, "reads from");
        check_present(*to.place.block, "writes to");
        mbarrier_complete(w, i, lane, *mbarrier.block, mbarrier.offset, to.bytes);
    }

  private:
    const Box from, to;
    const SharedPlace mbarrier;
    const Reduce reduce;
};
} // namespace

void start_load(const Issue &from, std::shared_ptr<const Rows> rows, Box to, SharedPlace mbarrier)
{
    mbarrier_for_copy(from.w, from.i, from.lane, mbarrier);
    auto t = std::make_shared<Load>(from, std::move(rows), to, mbarrier);
    later(*from.w.block->grid, [t] { t->finish(); });
}

std::shared_ptr<Transfer> start_store(const Issue &from, std::shared_ptr<const Rows> rows, Box box,
                                      Reduce reduce)
{
    auto t = std::make_shared<Store>(from, std::move(rows), box, reduce);
    later(*from.w.block->grid, [t] { t->read(); });
    return t;
}

void start_move(const Issue &from, SharedPlace source, SharedPlace to, uint32_t bytes,
                SharedPlace mbarrier, Reduce reduce)
{
    mbarrier_for_copy(from.w, from.i, from.lane, mbarrier);
    auto t = std::make_shared<Move>(from, source, to, bytes, mbarrier, reduce);
    later(*from.w.block->grid, [t] { t->finish(); });
}

// --- reductions ---

namespace
{
// Subnormal inputs and results become zeros of their sign: "The current implementation of
// cp.reduce.async.bulk.add.f32".
float flushed(float v)
{
    return fabsf(v) < 0x1p-126f ? copysignf(0, v) : v;
}
float float_of_bf16(uint16_t v)
{
    return bits_to<float>((uint32_t)v << 16);
}
uint16_t bf16_of_float(float v)
{
    const uint32_t bits = bits_to<uint32_t>(v);
    return v != v ? nan_half : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
template <float (*widen)(uint16_t)> bool is_less(uint16_t a, uint16_t b) // -0 below +0
{
    const float x = widen(a), y = widen(b);
    return x < y || (x == y && (a & 0x8000) > (b & 0x8000));
}
// min and max: a number rather than a NaN.
template <float (*widen)(uint16_t), bool greater> uint16_t extreme(uint16_t a, uint16_t b)
{
    const bool no_a = widen(a) != widen(a), no_b = widen(b) != widen(b);
    if (no_a || no_b)
        return no_a && no_b ? nan_half : no_a ? b : a;
    return is_less<widen>(a, b) != greater ? a : b;
}

template <class T, T (*op)(T, T)>
void reduce(unsigned char *to, const unsigned char *from, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += sizeof(T)) {
        T a, b;
        memcpy(&a, to + at, sizeof a);
        memcpy(&b, from + at, sizeof b);
        a = op(a, b);
        memcpy(to + at, &a, sizeof a);
    }
}

template <class T> T add(T a, T b)
{
    return (T)(a + b);
}
float add_flushed(float a, float b)
{
    return flushed(flushed(a) + flushed(b));
}
uint16_t add_half(uint16_t a, uint16_t b) // the sum of two in f32 rounds as the exact one
{
    const float sum = float_of_half(a) + float_of_half(b);
    return sum != sum ? nan_half : half_of_float(sum);
}
uint16_t add_bf16(uint16_t a, uint16_t b)
{
    return bf16_of_float(float_of_bf16(a) + float_of_bf16(b));
}
template <class T> T least(T a, T b)
{
    return b < a ? b : a;
}
template <class T> T greatest(T a, T b)
{
    return a < b ? b : a;
}
uint32_t increment(uint32_t a, uint32_t b)
{
    return a >= b ? 0 : a + 1;
}
uint32_t decrement(uint32_t a, uint32_t b)
{
    return !a || a > b ? b : a - 1;
}
template <class T> T and_of(T a, T b)
{
    return a & b;
}
template <class T> T or_of(T a, T b)
{
    return a | b;
}
template <class T> T xor_of(T a, T b)
{
    return a ^ b;
}

// "valid combinations of .redOp and element type"; in_shared: those of .shared::cluster too.
const struct {
    const char *op;
    Type type;
    bool in_shared;
    Reduce run;
} reductions[] = {
    {"add", Type::u32, true, reduce<uint32_t, add>},
    {"add", Type::s32, true, reduce<uint32_t, add>},
    {"add", Type::u64, true, reduce<uint64_t, add>},
    {"add", Type::f32, false, reduce<float, add_flushed>},
    {"add", Type::f64, false, reduce<double, add>},
    {"add", Type::f16, false, reduce<uint16_t, add_half>},
    {"add", Type::bf16, false, reduce<uint16_t, add_bf16>},
    {"min", Type::u32, true, reduce<uint32_t, least>},
    {"min", Type::s32, true, reduce<int32_t, least>},
    {"min", Type::u64, false, reduce<uint64_t, least>},
    {"min", Type::s64, false, reduce<int64_t, least>},
    {"min", Type::f16, false, reduce<uint16_t, extreme<float_of_half, false>>},
    {"min", Type::bf16, false, reduce<uint16_t, extreme<float_of_bf16, false>>},
    {"max", Type::u32, true, reduce<uint32_t, greatest>},
    {"max", Type::s32, true, reduce<int32_t, greatest>},
    {"max", Type::u64, false, reduce<uint64_t, greatest>},
    {"max", Type::s64, false, reduce<int64_t, greatest>},
    {"max", Type::f16, false, reduce<uint16_t, extreme<float_of_half, true>>},
    {"max", Type::bf16, false, reduce<uint16_t, extreme<float_of_bf16, true>>},
    {"inc", Type::u32, true, reduce<uint32_t, increment>},
    {"dec", Type::u32, true, reduce<uint32_t, decrement>},
    {"and", Type::b32, true, reduce<uint32_t, and_of>},
    {"and", Type::b64, false, reduce<uint64_t, and_of>},
    {"or", Type::b32, true, reduce<uint32_t, or_of>},
    {"or", Type::b64, false, reduce<uint64_t, or_of>},
    {"xor", Type::b32, true, reduce<uint32_t, xor_of>},
    {"xor", Type::b64, false, reduce<uint64_t, xor_of>},
};
} // namespace

Reduce reduce_of(const std::string &op, Type t, bool to_shared)
{
    for (const auto &r : reductions)
        if (r.op == op && r.type == t && (r.in_shared || !to_shared))
            return r.run;
    return nullptr;
}

// --- bulk copies ---

namespace
{
struct Form {
    AddressOperand to, from, mbarrier;
    int size, mask; // sources; mask -1: no multicast
    Window window;  // of `to` and `mbarrier`
    Reduce reduce;
};
} // namespace

static uint32_t size_in(Warp &w, const Inst &i, int source, uint32_t lane)
{
    const uint32_t size = word_in(w, i, (uint8_t)source, lane);
    if (size % 16)
        fault(w, i, 1u << lane, "a size of %u bytes, no multiple of 16", size);
    return size;
}

static std::shared_ptr<const Rows> one_row(Warp &w, const Inst &i, const AddressOperand &a,
                                           uint32_t size, uint32_t lane, Access how)
{
    auto rows = std::make_shared<Rows>();
    rows->bytes = size;
    if (size)
        rows->rows.push_back(
            {reach(w, i, Space::global, address_in(w, i, a, lane), size, 16, lane, how), 0, size});
    return rows;
}

static Next load(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        const uint32_t size = size_in(w, i, f.size, lane);
        const auto rows = one_row(w, i, f.from, size, lane, Access::read);
        const SharedPlace to = place_in(w, i, f.to, f.window, size, 16, lane);
        const SharedPlace mbarrier = place_in(w, i, f.mbarrier, f.window, 8, 8, lane);
        each_target(w, i, lane, f.mask, to, mbarrier, [&](SharedPlace at, SharedPlace reports) {
            start_load({w, i, lane, "cp.async.bulk"}, rows, {at, size, 0}, reports);
        });
    });
    return Next::on;
}

static Next store(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        const uint32_t size = size_in(w, i, f.size, lane);
        const auto rows = one_row(w, i, f.to, size, lane, Access::write);
        const SharedPlace from = place_in(w, i, f.from, Window::cta, size, 16, lane);
        const char *what = f.reduce ? "cp.reduce.async.bulk" : "cp.async.bulk";
        add_to_group(w, lane, start_store({w, i, lane, what}, rows, {from, size, 0}, f.reduce));
    });
    return Next::on;
}

static Next move(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        const uint32_t size = size_in(w, i, f.size, lane);
        const SharedPlace from = place_in(w, i, f.from, Window::cta, size, 16, lane);
        const SharedPlace to = place_in(w, i, f.to, f.window, size, 16, lane);
        const SharedPlace mbarrier = place_in(w, i, f.mbarrier, f.window, 8, 8, lane);
        if (to.block == w.block && !f.reduce)
            fault(w, i, 1u << lane, "the destination has to be in another block of the cluster");
        const char *what = f.reduce ? "cp.reduce.async.bulk" : "cp.async.bulk";
        start_move({w, i, lane, what}, from, to, size, mbarrier, f.reduce);
    });
    return Next::on;
}

// The range is in bounds; nothing else comes of a prefetch.
static Next prefetch(Warp &w, const Inst &i, uint32_t lanes)
{
    const Form &f = form_of<Form>(i);
    each(lanes, [&](uint32_t lane) {
        one_row(w, i, f.from, size_in(w, i, f.size, lane), lane, Access::read);
    });
    return Next::on;
}

// --- decoders ---

Direction take_direction(Statement &s)
{
    std::vector<std::string> spaces;
    for (size_t k = 0; k < s.words.size();) {
        const std::string word = s.words[k];
        if (word != "global" && word != "shared::cta" && word != "shared::cluster") {
            k++;
            continue;
        }
        spaces.push_back(word);
        s.words.erase(s.words.begin() + (ptrdiff_t)k);
    }
    static const char *const known[][2] = {{"shared::cluster", "global"},
                                           {"shared::cta", "global"},
                                           {"global", "shared::cta"},
                                           {"shared::cluster", "shared::cta"}};
    for (size_t k = 0; k < 4; k++)
        if (spaces.size() == 2 && spaces[0] == known[k][0] && spaces[1] == known[k][1])
            return (Direction)k;
    s.refuse("the spaces of the destination and of the source are not known");
}

static Reduce take_reduction(Statement &s, bool to_shared)
{
    static const char *const ops[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
    std::string op;
    for (const char *known : ops)
        if (op.empty() && s.take(known))
            op = known;
    const bool noftz = s.take("noftz");
    const Type t = s.take_type();
    const Reduce reduce = reduce_of(op, t, to_shared);
    if (!reduce)
        s.refuse("there is no reduction .%s.%s of this direction", op.c_str(), name_of(t));
    if (noftz != (op == "add" && (t == Type::f16 || t == Type::bf16)))
        s.refuse(".noftz belongs to .add.f16 and .add.bf16");
    return reduce;
}

static void take_policy(Statement &s, Asker &ask, size_t k)
{
    if (s.take("L2::cache_hint"))
        ask.source(k, Type::b64);
}

static Run decode_bulk_prefetch(Statement &s)
{
    if (!s.take("L2") || !s.take("global"))
        s.refuse(".L2.global is expected");
    Asker ask = {s};
    Form f = {};
    f.from = ask.address(0);
    f.size = ask.source(1, Type::u32);
    take_policy(s, ask, 2);
    keep_form(s, f);
    return prefetch;
}

Run decode_bulk(Statement &s, bool reduce)
{
    if (!reduce && s.take("prefetch"))
        return decode_bulk_prefetch(s);
    const Direction direction = take_direction(s);
    const bool to_global = direction == Direction::cta_to_global;
    Form f = {};
    if (!s.take(to_global ? "bulk_group" : "mbarrier::complete_tx::bytes"))
        s.refuse("another completion mechanism is expected");
    if (reduce &&
        (direction == Direction::global_to_cta || direction == Direction::global_to_cluster))
        s.refuse("there is no reduction of global memory into shared memory");
    if (reduce)
        f.reduce = take_reduction(s, !to_global);
    s.entry().async_proxy = true;
    Asker ask = {s};
    f.to = ask.address(0);
    f.from = ask.address(1);
    f.size = ask.source(2, Type::u32);
    f.mask = -1;
    f.window = direction == Direction::global_to_cta ? Window::cta : Window::cluster;
    size_t k = 3;
    if (!to_global)
        f.mbarrier = ask.address(k++);
    if (direction == Direction::global_to_cluster && s.take("multicast::cluster"))
        f.mask = ask.source(k++, Type::b16);
    if (direction != Direction::cta_to_cluster)
        take_policy(s, ask, k);
    keep_form(s, f);
    return to_global ? store : direction == Direction::cta_to_cluster ? move : load;
}
} // namespace ptx
