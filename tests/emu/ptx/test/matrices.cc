// Matrices of warps and warpgroups: elements are small integers, which all formats have, and
// products are compared with sums of integers. Layouts are the formulas of the PTX ISA for one
// element, by its row and column.
#include "test.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

namespace
{
std::mt19937 random_source(1);

int between(int low, int high)
{
    return std::uniform_int_distribution<int>(low, high)(random_source);
}

// --- elements ---

struct Format {
    const char *name;
    int bytes, exponent, fraction; // bits; no exponent: an integer
    int low, high;                 // of the integers that are tried
};
const Format f16 = {"f16", 2, 5, 10, -7, 7}, bf16 = {"bf16", 2, 8, 7, -7, 7};
const Format tf32 = {"tf32", 4, 8, 23, -7, 7}, f32 = {"f32", 4, 8, 23, -99, 99};
const Format e4m3 = {"e4m3", 1, 4, 3, -7, 7}, e5m2 = {"e5m2", 1, 5, 2, -4, 4};
const Format s8 = {"s8", 1, 0, 7, -128, 127}, u8 = {"u8", 1, 0, 8, 0, 255};
const Format s32 = {"s32", 4, 0, 31, -99999, 99999};

// The bits of an integer that the format has.
uint32_t encode(const Format &f, int v)
{
    if (!f.exponent || !v)
        return (uint32_t)v & (f.bytes == 4 ? ~0u : 0xff);
    const uint32_t size = (uint32_t)std::abs(v), bias = (1u << (f.exponent - 1)) - 1;
    const uint32_t power = 31 - (uint32_t)__builtin_clz(size);
    const uint32_t fraction = (uint32_t)(((uint64_t)size << f.fraction) >> power);
    return (uint32_t)(v < 0) << (f.exponent + f.fraction) | (power + bias) << f.fraction |
           (fraction & ((1u << f.fraction) - 1));
}

struct Matrix {
    int rows, columns;
    std::vector<int> v;
    Matrix(int r, int c, const Format &f) : rows(r), columns(c), v((size_t)(r * c))
    {
        for (int &e : v)
            e = between(f.low, f.high);
    }
    int &at(int r, int c)
    {
        return v[(size_t)(r * columns + c)];
    }
};

// sign * A * B + C, B by columns, modulo 2^32 or saturated behind each `depth` products.
Matrix product(Matrix a, Matrix b, Matrix c, int sign, bool saturates, int depth)
{
    for (int m = 0; m < c.rows; m++)
        for (int n = 0; n < c.columns; n++) {
            int64_t sum = c.at(m, n);
            for (int k = 0; k < a.columns; k++) {
                sum += sign * a.at(m, k) * b.at(n, k);
                if (saturates && (k + 1) % depth == 0)
                    sum = std::min<int64_t>(std::max<int64_t>(sum, INT32_MIN), INT32_MAX);
            }
            c.at(m, n) = (int)(uint32_t)sum;
        }
    return c;
}

// --- fragments: word r of lane l of warp w is at [(r * warps + w) * 32 + l] ---

using Words = std::vector<uint32_t>;

// Lines (rows of A, columns of B) by k: 16 of A for each warp, else 8; `depth` k an instruction.
Words fragment(Matrix a, const Format &f, int warps, int depth)
{
    const int per_word = 4 / f.bytes, halves = a.rows / warps / 8, cores = depth / per_word / 4;
    Words words((size_t)(a.rows * a.columns / per_word));
    for (int row = 0; row < a.rows; row++)
        for (int k = 0; k < a.columns; k++) {
            const int in = row % (8 * halves), core = k % depth / per_word / 4;
            const int r = (k / depth * cores + core) * halves + in / 8;
            const int lane = in % 8 * 4 + k % (4 * per_word) / per_word;
            const int word = (r * warps + row / (8 * halves)) * 32 + lane;
            words[(size_t)word] |= encode(f, a.at(row, k)) << (8 * f.bytes * (k % per_word));
        }
    return words;
}

// C and D: a lane has two columns of rows g and g + 8 of each eight columns.
Words fragment_d(Matrix d, const Format &f, int warps)
{
    if (f.bytes == 2)
        return fragment(d, f, warps, d.columns);
    const int halves = d.rows / warps / 8;
    Words words(d.v.size());
    for (int row = 0; row < d.rows; row++)
        for (int n = 0; n < d.columns; n++) {
            const int in = row % (8 * halves), r = 2 * (n / 8 * halves + in / 8) + n % 2;
            const int lane = in % 8 * 4 + n % 8 / 2;
            const int word = (r * warps + row / (8 * halves)) * 32 + lane;
            words[(size_t)word] = encode(f, d.at(row, n));
        }
    return words;
}

// --- text ---

using std::to_string;

std::string list(const std::string &name, int n, int first)
{
    std::string s = "{";
    for (int k = 0; k < n; k++)
        s += (k ? ", %" : "%") + name + to_string(first + k);
    return s + "}";
}

// %rd0 to %rd9 are the parameters, %r0 the thread, %rd10 its offset in words of a fragment.
std::string begin(int n_param)
{
    std::string s = ".reg .b32 %r<400>; .reg .b64 %rd<20>; .reg .f32 %f<400>; .reg .pred %p<4>;\n"
                    "mov.u32 %r0, %tid.x;\nmul.wide.u32 %rd10, %r0, 4;\n";
    for (int k = 0; k < n_param; k++)
        s += "ld.param.u64 %rd" + to_string(k) + ", [p" + to_string(k) + "];\n";
    return s;
}

// Loads or stores n registers of all threads.
std::string each(bool load, int param, const std::string &name, int n, int first, int threads)
{
    std::string s = "add.u64 %rd11, %rd" + to_string(param) + ", %rd10;\n";
    for (int k = 0; k < n; k++) {
        const std::string place = "[%rd11 + " + to_string(k * threads * 4) + "]";
        const std::string word = "%" + name + to_string(first + k);
        s += load ? "ld.global.b32 " + word + ", " + place + ";\n"
                  : "st.global.b32 " + place + ", " + word + ";\n";
    }
    return s;
}

// Launches it with one block and compares what it leaves.
void judge(const Kernel &k, const std::vector<uint64_t> &params, uint32_t threads, uint32_t shared,
           const Array<uint32_t> &out, const Words &want, const std::string &what)
{
    const std::string found = k.run(params, threads, 1, shared);
    EXPECT(found.empty(), "%s: %s", what.c_str(), found.c_str());
    const Words got = out.get();
    const size_t at =
        (size_t)(std::mismatch(want.begin(), want.end(), got.begin()).first - want.begin());
    if (found.empty() && at < want.size())
        EXPECT(false, "%s: register %zu of thread %zu is 0x%x, not 0x%x", what.c_str(),
               at / threads, at % threads, got[at], want[at]);
}

// --- mma ---

void try_mma(int m, int k, const Format &d, const Format &a, const Format &b, bool saturates)
{
    const std::string what = "mma.sync.aligned.m" + to_string(m) + "n8k" + to_string(k) +
                             ".row.col" + (saturates ? ".satfinite." : ".") + d.name + "." +
                             a.name + "." + b.name + "." + d.name;
    Matrix ma(m, k, a), mb(8, k, b), mc(m, 8, d.bytes == 2 ? bf16 : d);
    if (!d.exponent) // reaches beyond both ends of 32 bits
        for (int &v : mc.v)
            v = between(0, 1) ? INT32_MAX - between(0, 9999) : INT32_MIN + between(0, 9999);
    const Words wa = fragment(ma, a, 1, k), wb = fragment(mb, b, 1, k), wc = fragment_d(mc, d, 1);
    const int n_a = (int)wa.size() / 32, n_b = (int)wb.size() / 32, n_d = (int)wc.size() / 32;
    const char *r = &d == &f32 ? "f" : "r";
    const Kernel kernel(4, begin(4) + each(true, 0, "r", n_a, 10, 32) +
                               each(true, 1, "r", n_b, 20, 32) + each(true, 2, r, n_d, 30, 32) +
                               what + " " + list(r, n_d, 40) + ", " + list("r", n_a, 10) + ", " +
                               list("r", n_b, 20) + ", " + list(r, n_d, 30) + ";\n" +
                               each(false, 3, r, n_d, 40, 32));
    const Array<uint32_t> da(wa), db(wb), dc(wc), dd(wc.size());
    judge(kernel, {da.at(), db.at(), dc.at(), dd.at()}, 32, 0, dd,
          fragment_d(product(ma, mb, mc, 1, saturates, k), d, 1), what);
}

// --- ldmatrix, stmatrix, movmatrix ---

// The element of 8 x 8 that half h of a lane's register has, as 8 * row + column.
int place_of(int lane, int h, bool transposed)
{
    const int row = lane / 4, column = lane % 4 * 2 + h;
    return transposed ? 8 * column + row : 8 * row + column;
}

// Copies so many bytes from p0 to shared memory, 16 a thread at a time; leaves its address in %r1.
std::string copy_in(size_t bytes)
{
    return "mov.u32 %r1, smem;\nmov.u32 %r2, %ntid.x;\nshl.b32 %r2, %r2, 4;\n"
           "shl.b32 %r3, %r0, 4;\ncvt.u64.u32 %rd13, %r3;\nadd.u64 %rd12, %rd0, %rd13;\n"
           "COPY:\nadd.u32 %r8, %r1, %r3;\nld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd12];\n"
           "st.shared.v4.b32 [%r8], {%r4, %r5, %r6, %r7};\nadd.u32 %r3, %r3, %r2;\n"
           "cvt.u64.u32 %rd13, %r2;\nadd.u64 %rd12, %rd12, %rd13;\n"
           "setp.lt.u32 %p0, %r3, " +
           to_string(bytes) + ";\n@%p0 bra COPY;\n";
}

const char *const dynamic_shared = ".extern .shared .align 1024 .b8 smem[];";

// Loads or stores n matrices whose rows lie in any order in shared memory; with the generic or the
// shared address.
void try_rows(bool load, int n, bool transposed, bool generic)
{
    const std::string what = std::string(load ? "ldmatrix" : "stmatrix") + ".sync.aligned.m8n8.x" +
                             to_string(n) + (transposed ? ".trans" : "") +
                             (generic ? ".b16" : ".shared.b16");
    std::vector<uint32_t> order(32); // of the rows of 16 bytes
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_source);
    std::vector<uint32_t> offsets(32, 0xfffff), registers((size_t)n * 32); // not used: anywhere
    const std::vector<uint16_t> before(256, 0xabab);
    std::vector<uint16_t> rows(256), after = before;
    for (uint16_t &h : rows)
        h = (uint16_t)between(0, 0xffff);
    for (int m = 0; m < n; m++)
        for (int lane = 0; lane < 32; lane++)
            for (int h = 0; h < 2; h++) {
                const int at = place_of(lane, h, transposed), row = 8 * m + at / 8;
                const size_t half = order[(size_t)row] * 8 + (size_t)at % 8;
                offsets[(size_t)row] = 16 * order[(size_t)row];
                registers[(size_t)(m * 32 + lane)] |= (uint32_t)rows[half] << 16 * h;
                after[half] = rows[half];
            }
    const std::string address = generic ? "[%rd14]" : "[%r9]", all = list("r", n, 20);
    std::string text = begin(4) + copy_in(512) + "bar.sync 0;\n" + each(true, 1, "r", 1, 8, 32) +
                       "add.u32 %r9, %r1, %r8;\n" +
                       "cvt.u64.u32 %rd13, %r9;\ncvta.shared.u64 %rd14, %rd13;\n";
    if (load)
        text += what + " " + all + ", " + address + ";\n" + each(false, 2, "r", n, 20, 32);
    else // and copies shared memory out again
        text += each(true, 2, "r", n, 20, 32) + what + " " + address + ", " + all +
                ";\nbar.sync 0;\nmad.lo.u32 %r2, %r0, 4, %r1;\n" +
                "ld.shared.b32 %r20, [%r2];\nld.shared.b32 %r21, [%r2+128];\n"
                "ld.shared.b32 %r22, [%r2+256];\nld.shared.b32 %r23, [%r2+384];\n" +
                each(false, 3, "r", 4, 20, 32);
    const Kernel kernel(4, text, dynamic_shared);
    const Array<uint16_t> image(load ? rows : before);
    const Array<uint32_t> at(offsets), in(registers), loaded(registers.size()), out(128);
    Words stored(128);
    memcpy(stored.data(), after.data(), 512);
    judge(kernel, {image.at(), at.at(), load ? loaded.at() : in.at(), out.at()}, 32, 512,
          load ? loaded : out, load ? registers : stored, what);
}

// --- wgmma ---

// A tile of shared memory: lines (rows of A, columns of B) by k.
struct Tile {
    int start, width; // bytes of a row of the swizzle pattern; 16: none
    bool k_major;
    int step_k, step_lines; // bytes to the next pattern

    // Picks the steps for so many lines and elements along k.
    Tile(int at, int w, bool k_first, int lines, int depth, int element)
        : start(at), width(w), k_major(k_first)
    {
        const int pattern = 8 * width + (width == 16 ? 16 * between(0, 2) : 0);
        const int across = k_major ? lines / 8 : (lines * element + width - 1) / width;
        const int along = k_major ? depth * element / 16 : depth / 8;
        const bool k_inside = between(0, 1); // neighbours along k lie side by side
        step_k = k_inside ? pattern : pattern * across;
        step_lines = k_inside ? pattern * along : pattern;
        if (k_major && width > 16) { // all k is in one pattern
            step_k = 16;
            step_lines = pattern * between(1, 2);
        }
    }
    // The offset of an element.
    int offset(int line, int k, int element) const
    {
        const int along = k * element, across = line * element;
        const int plain =
            k_major ? line / 8 * step_lines + line % 8 * width + along / 16 * step_k + along % 16
                    : k / 8 * step_k + k % 8 * width + across / width * step_lines + across % width;
        // The 16 bytes change places with others of the same row of 128.
        const int chunk = plain / 16 % 8, row = plain / 128;
        return start + plain / 128 * 128 + (chunk ^ row % (width / 16)) * 16 + plain % 16;
    }
    uint64_t descriptor() const // without the address of shared memory
    {
        const uint64_t modes[] = {0, 0, 3, 0, 2, 0, 0, 0, 1}; // by width / 16
        const bool swapped = !k_major && width > 16;
        const uint64_t leading = (uint64_t)(swapped ? step_lines : step_k) / 16;
        const uint64_t stride = (uint64_t)(swapped ? step_k : step_lines) / 16;
        return (uint64_t)start >> 4 | leading << 16 | stride << 32 | modes[width / 16] << 62;
    }
};

void put_tile(std::vector<uint8_t> &image, const Tile &t, Matrix m, const Format &f)
{
    for (int line = 0; line < m.rows; line++)
        for (int k = 0; k < m.columns; k++) {
            uint32_t bits = encode(f, m.at(line, k));
            if (&f == &tf32)
                bits |= (uint32_t)between(0, 0x1fff); // those have no meaning
            const size_t at = (size_t)t.offset(line, k, f.bytes);
            image.resize(std::max(image.size(), (at / 2048 + 1) * 2048), 0x55);
            memcpy(&image[at], &bits, (size_t)f.bytes);
        }
}

// Adds the address of shared memory to the parameters 4 and 5; %p1 is false, %p2 true.
const char *const descriptors = "mov.u32 %r8, smem;\nshr.u32 %r8, %r8, 4;\n"
                                "cvt.u64.u32 %rd13, %r8;\n"
                                "add.u64 %rd4, %rd4, %rd13;\nadd.u64 %rd5, %rd5, %rd13;\n"
                                "setp.eq.u32 %p2, %r0, %r0;\nsetp.ne.u32 %p1, %r0, %r0;\n";

// D = A * B, or + C; width_a 0: A in registers.
void try_wgmma(const Format &d, const Format &a, const Format &b, int n, int width_a, int width_b,
               bool k_major_a, bool k_major_b, bool adds, int scale_a, int scale_b, bool saturates)
{
    const int depth = 32 / a.bytes, n_d = n / 8 * d.bytes;
    // One instruction for each k-step that a row of the narrower swizzle holds.
    auto width = [](int w) { return w < 32 ? 128 : w; };
    const int steps = std::min(width(width_a), width(width_b)) / 32, all_k = depth * steps;
    Matrix ma(64, all_k, a), mb(n, all_k, b), mc(64, n, d.bytes == 2 ? bf16 : d);
    for (int &v : mc.v)
        v = !adds ? 0 : saturates ? INT32_MAX - between(0, 9999) : v;
    if (d.bytes == 2) // sums of which f16 has all bits
        for (int &v : ma.v)
            v = v % 2;
    const Tile ta(0, width_a ? width_a : 16, k_major_a, 64, all_k, a.bytes);
    std::vector<uint8_t> image;
    if (width_a)
        put_tile(image, ta, ma, a);
    const Tile tb((int)image.size(), width_b, k_major_b, n, all_k, b.bytes);
    put_tile(image, tb, mb, b);
    const std::string r = &d == &f32 ? "f" : "r";
    const std::string what = "wgmma.mma_async.sync.aligned.m64n" + to_string(n) + "k" +
                             to_string(depth) + (saturates ? ".satfinite." : ".") + d.name + "." +
                             a.name + "." + b.name;
    const std::string told = what + " swizzles " + to_string(width_a) + ", " + to_string(width_b) +
                             (k_major_a ? " K" : " M") + (k_major_b ? " K" : " N");
    std::string text = begin(6) + copy_in(image.size()) + descriptors;
    if (!width_a)
        text += each(true, 1, "r", 4 * steps, 10, 128);
    if (adds)
        text += each(true, 2, r, n_d, 100, 128);
    text += "fence.proxy.async;\nbar.sync 0;\nwgmma.fence.sync.aligned;\n";
    for (int k = 0; k < steps; k++) {
        text += what + " " + list(r, n_d, 100) + ", " +
                (width_a ? "%rd4" : list("r", 4, 10 + 4 * k)) + ", %rd5, " +
                (adds || k ? "%p2" : "%p1");
        if (d.exponent)
            text += ", " + to_string(scale_a) + ", " + to_string(scale_b);
        if (a.bytes == 2)
            text += (width_a ? ", " + to_string(!k_major_a) : "") + ", " + to_string(!k_major_b);
        text += ";\nadd.u64 %rd4, %rd4, " + to_string(ta.step_k / 8) + ";\nadd.u64 %rd5, %rd5, " +
                to_string(tb.step_k / 8) + ";\n";
    }
    text += "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" +
            each(false, 3, r, n_d, 100, 128);
    const Kernel kernel(6, text, dynamic_shared);
    const Array<uint8_t> di(image);
    const Array<uint32_t> da(fragment(ma, a, 4, depth)), dc(fragment_d(mc, d, 4));
    const Array<uint32_t> dd((size_t)n_d * 128);
    const Matrix want = product(ma, mb, mc, scale_a * scale_b, saturates, depth);
    judge(kernel, {di.at(), da.at(), dc.at(), dd.at(), ta.descriptor(), tb.descriptor()}, 128,
          (uint32_t)image.size(), dd, fragment_d(want, d, 4), told);
}

const int widths[] = {16, 32, 64, 128};

// All swizzles and places of A and B; only elements of 16 bits are not K-major.
void try_layouts(const Format &d, const Format &a, const Format &b, bool saturates = false)
{
    const int n[] = {8, 16, 24, 64, 256};
    int i = 0;
    for (int width_a : {0, 16, 32, 64, 128})
        for (int width_b : widths)
            for (int majors = 0; majors < (a.bytes == 2 ? 4 : 1); majors++, i++)
                if (width_a || majors < 2)
                    try_wgmma(d, a, b, n[i % 5], width_a, width_b, majors < 2, majors % 2 == 0,
                              saturates || i % 3 == 0, d.exponent && i % 4 == 0 ? -1 : 1,
                              d.exponent && i % 7 == 0 ? -1 : 1, saturates);
}
} // namespace

TEST(mma)
{
    for (int k : {8, 16}) {
        try_mma(16, k, f32, f16, f16, false);
        try_mma(16, k, f16, f16, f16, false);
        try_mma(16, k, f32, bf16, bf16, false);
        try_mma(16, k / 2, f32, tf32, tf32, false);
    }
    for (int k : {16, 32})
        for (const Format *a : {&e4m3, &e5m2})
            for (const Format *b : {&e4m3, &e5m2})
                for (const Format *d : {&f16, &f32})
                    try_mma(16, k, *d, *a, *b, false);
    for (const Format *a : {&s8, &u8})
        for (const Format *b : {&s8, &u8})
            for (bool saturates : {false, true}) {
                try_mma(8, 16, s32, *a, *b, saturates);
                try_mma(16, 16, s32, *a, *b, saturates);
                try_mma(16, 32, s32, *a, *b, saturates);
            }
}

TEST(rows_of_matrices)
{
    for (bool load : {true, false})
        for (int n : {1, 2, 4})
            for (bool transposed : {false, true})
                for (bool generic : {false, true})
                    try_rows(load, n, transposed, generic);
}

TEST(movmatrix)
{
    Words from(32), want(32);
    std::generate(from.begin(), from.end(), std::ref(random_source));
    for (int lane = 0; lane < 32; lane++)
        for (int h = 0; h < 2; h++) {
            const int at = place_of(lane, h, true);
            want[(size_t)lane] |= (from[(size_t)at / 2] >> at % 2 * 16 & 0xffff) << 16 * h;
        }
    const Array<uint32_t> a(from), d(32);
    const Kernel kernel(2, begin(2) + each(true, 0, "r", 1, 8, 32) +
                               "movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r8;\n" +
                               each(false, 1, "r", 1, 9, 32));
    judge(kernel, {a.at(), d.at()}, 32, 0, d, want, "movmatrix");
}

TEST(wgmma_layouts)
{
    try_layouts(f32, bf16, bf16);
    try_layouts(f32, tf32, tf32);
    for (const Format *d : {&f16, &f32}) {
        try_layouts(*d, f16, f16);
        try_layouts(*d, e4m3, e5m2);
        try_layouts(*d, e5m2, e4m3);
    }
    try_layouts(s32, s8, s8);
    try_layouts(s32, s8, u8, true);
    try_layouts(s32, u8, s8, true);
}

TEST(wgmma_shapes)
{
    for (int n = 8; n <= 256; n += 8)
        try_wgmma(f32, f16, f16, n, 128, widths[n / 8 % 4], true, n % 3 != 0, false, 1, 1, false);
    for (int n = 16; n <= 256; n += 16)
        try_wgmma(s32, s8, s8, n, 128, widths[n / 16 % 4], true, true, true, 1, 1, false);
    each_schedule([] {
        try_wgmma(f32, f16, f16, 64, 128, 128, false, true, true, 1, 1, false);
        try_wgmma(f32, bf16, bf16, 64, 0, 64, true, false, false, 1, -1, false);
    });
}

// Accesses that are not allowed while a product is in flight, and missing fences and waits.
TEST(wgmma_findings)
{
    const std::string fence = "wgmma.fence.sync.aligned;\n", read = "mov.b32 %r9, %f1;\n";
    const std::string wait1 = "wgmma.wait_group.sync.aligned 1;\n";
    const std::string wait = "wgmma.wait_group.sync.aligned 0;\n";
    const std::string write_a = "mov.b32 %r11, 0;\n", write_d = "mov.b32 %f1, 0f00000000;\n";
    auto product_of = [](int d, const std::string &rest) {
        return "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 " + list("f", 4, d) + ", " +
               rest + ";\nwgmma.commit_group.sync.aligned;\n";
    };
    const std::string first = product_of(0, "%rd4, %rd5, %p1, 1, 1, 0, 0");
    const std::string second = product_of(4, "%rd4, %rd5, %p1, 1, 1, 0, 0");
    const std::string adds = product_of(0, "%rd4, %rd5, %p2, 1, 1, 0, 0");
    const std::string held = product_of(0, list("r", 4, 10) + ", %rd5, %p1, 1, 1, 0");
    const std::pair<std::string, const char *> cases[] = {
        {fence + first + wait + read, ""},
        {fence + first + second + wait1 + read + wait, ""},
        {fence + first + adds + adds + wait + read, ""},
        {first + wait, "no wgmma.fence before the first"},
        {fence + write_d + first + wait, "written since the last"},
        {fence + write_a + held + wait, "written since the last"},
        {fence + first + wait1 + read + wait, "an accumulator of the wgmma"},
        {fence + held + write_a + wait, "in the fragment of A"},
        {fence + adds + wait, "was never written, and scale-d is true"},
        {fence + first, "the warp ends"},
        {"setp.lt.u32 %p3, %r0, 32;\n@%p3 ret;\n" + fence + first + wait, "returned"},
        {"add.u64 %rd4, %rd4, %rd10;\n" + fence + first + wait, "in lane 0"},
        {"add.u64 %rd5, %rd5, 0x1000;\n" + fence + first + wait, "outside"},
    };
    const Array<uint32_t> zeros(Words(512));
    for (const auto &c : cases) {
        const Kernel kernel(6, begin(6) + each(true, 0, "r", 4, 10, 128) + descriptors + c.first,
                            dynamic_shared);
        const uint64_t tile = 8ull << 16 | 16ull << 32; // two core matrices a group
        const std::string found = kernel.run({zeros.at(), 0, 0, 0, tile, tile}, 128, 1, 4096);
        EXPECT(*c.second ? found.find(c.second) != found.npos : found.empty(), "%s: %s",
               c.first.c_str(), found.c_str());
    }
}
