// The emulated cuBLASLt: products of matrices as operations of the emulated driver's queue, so that
// they run late and stand in graphs. A product is computed as its descriptors say, column-major,
// with sums in f32 in a fixed order. What the library would refuse is refused; what it would let
// pass, though it is wrong, is reported: another shape than the algorithm was chosen for, addresses
// that are less aligned than was said.
#include "tests/emu/libcuda_state.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/f16.h"
#include "cuda/cublaslt.h"

extern "C" {
#define FN(type, name, symbol, params) __attribute__((visibility("default"))) type symbol params;
#include "cuda/cublaslt.def"
#undef FN
}

struct cublaslt_handle_st {
    drv::context_ref ctx;
};
struct cublaslt_desc_st {
    int compute, scale;
    int32_t trans[2];
};
struct cublaslt_layout_st {
    int type;
    uint64_t rows, cols;
    int64_t pitch;
};
struct cublaslt_preference_st {
    uint64_t workspace = 0;
    uint32_t reductions = 7, align[4] = {256, 256, 256, 256};
};

namespace drv
{

enum : uint64_t { MAGIC = 0x6c74616c676f0000 };
enum : uintptr_t { WORKSPACE_ALIGN = 256 };

static struct {
    std::map<const void *, std::shared_ptr<void>> live; // handles, descriptors and so on
} L;

void forget_products()
{
    L.live.clear();
}

int64_t live_products()
{
    return (int64_t)L.live.size();
}

// Numbers of other libraries' errors stand for a failed execution.
static int status_of(int error)
{
    return error <= CUBLASLT_NOT_SUPPORTED + 1 ? error : CUBLASLT_EXECUTION_FAILED;
}

template <class T> static int make(T **out, T value)
{
    auto made = std::make_shared<T>(std::move(value));
    L.live[made.get()] = made;
    *out = made.get();
    return CUBLASLT_OK;
}

static bool is_live(const call &c, const void *object)
{
    if (L.live.count(object))
        return true;
    misuse(c.ctx.get(), "%s: an object is destroyed, or none", c.symbol);
    return false;
}

static int destroy(const call &c, const void *object)
{
    if (!is_live(c, object))
        return CUBLASLT_INVALID_VALUE;
    L.live.erase(object);
    return status_of(c.error);
}

static size_t size_of(int type)
{
    return type == CUBLASLT_F32 ? 4 : type == CUBLASLT_F16 || type == CUBLASLT_BF16 ? 2 : 0;
}

static float load(int type, const void *p, uint64_t i)
{
    return type == CUBLASLT_F32    ? ((const float *)p)[i]
           : type == CUBLASLT_BF16 ? gr_bf16_to_f32(((const uint16_t *)p)[i])
                                   : gr_f16_to_f32(((const uint16_t *)p)[i]);
}

static range bytes_of(const struct cublaslt_layout_st &m, const void *p)
{
    uint64_t n = (m.cols - 1) * (uint64_t)m.pitch + m.rows;
    return {(uintptr_t)p, (uintptr_t)p + n * size_of(m.type)};
}

// --- a product ---

struct product {
    struct cublaslt_desc_st desc;
    struct cublaslt_layout_st a, b, d;
    const void *pa, *pb;
    float *pd;
    range workspace;
    float alpha;
};

// Row i of op(m), which has n columns.
static void gather(const struct cublaslt_layout_st &m, bool down, const void *p, uint64_t i,
                   uint64_t n, float *to)
{
    for (uint64_t k = 0; k < n; k++)
        to[k] = load(m.type, p, down ? i * (uint64_t)m.pitch + k : k * (uint64_t)m.pitch + i);
}

void run_product(const struct product &p)
{
    const bool a_down = p.desc.trans[0] == CUBLASLT_OP_T, b_down = p.desc.trans[1] == CUBLASLT_OP_N;
    const uint64_t n = a_down ? p.a.rows : p.a.cols;
    std::vector<float> a(p.d.rows * n), b(n);
    for (uint64_t i = 0; i < p.d.rows; i++)
        gather(p.a, a_down, p.pa, i, n, &a[i * n]);
    if (p.workspace.hi > p.workspace.lo) { // its contents are the library's
        memset((void *)p.workspace.lo, 0xff,
               std::min<size_t>(4096, p.workspace.hi - p.workspace.lo));
        memset((void *)(p.workspace.hi - 1), 0xff, 1);
    }
    for (uint64_t j = 0; j < p.d.cols; j++) {
        gather(p.b, b_down, p.pb, j, n, b.data());
        for (uint64_t i = 0; i < p.d.rows; i++) {
            float part[8] = {}, sum = 0;
            for (uint64_t k = 0; k < n; k++)
                part[k % 8] += a[i * n + k] * b[k];
            for (float v : part)
                sum += v;
            p.pd[j * (uint64_t)p.d.pitch + i] = p.alpha * sum;
        }
    }
}

// True when descriptors agree, and are of a kind that is emulated.
static bool agree(const struct cublaslt_desc_st &desc, const struct cublaslt_layout_st &a,
                  const struct cublaslt_layout_st &b, const struct cublaslt_layout_st &d)
{
    uint64_t k = desc.trans[0] == CUBLASLT_OP_T ? a.rows : a.cols,
             m = desc.trans[0] == CUBLASLT_OP_T ? a.cols : a.rows,
             n = desc.trans[1] == CUBLASLT_OP_T ? b.rows : b.cols,
             k_b = desc.trans[1] == CUBLASLT_OP_T ? b.cols : b.rows;
    return desc.compute == CUBLASLT_COMPUTE_F32 && desc.scale == CUBLASLT_F32 && a.type == b.type &&
           d.type == CUBLASLT_F32 && k == k_b && m == d.rows && n == d.cols;
}

// Problem that an algorithm is chosen for.
static struct cublaslt_algo algo_of(const struct cublaslt_desc_st &desc,
                                    const struct cublaslt_layout_st &a,
                                    const struct cublaslt_layout_st &b,
                                    const struct cublaslt_layout_st &d,
                                    const struct cublaslt_preference_st &p)
{
    uint64_t align = 0, trans = (uint64_t)desc.trans[0] | (uint64_t)desc.trans[1] << 1;
    for (int i = 0; i < 4; i++)
        align |= (uint64_t)p.align[i] << 16 * i;
    return {{MAGIC | (uint64_t)a.type << 8 | trans, d.rows, d.cols,
             desc.trans[0] == CUBLASLT_OP_T ? a.rows : a.cols,
             (uint64_t)a.pitch << 32 | (uint64_t)b.pitch, (uint64_t)d.pitch, align, p.workspace}};
}

static int check_memory(const call &c, const char *what, const range &r, uint64_t align,
                        const stream &s)
{
    const allocation *a = find_in(S.memory, r.lo);
    if (!all_in(S.memory, r) || a->ctx != s.ctx) {
        misuse(c.ctx.get(), "%s: %s [%#" PRIxPTR ", %#" PRIxPTR ") is no memory of the device",
               c.symbol, what, r.lo, r.hi);
        return CUBLASLT_INVALID_VALUE;
    }
    if (r.lo % align) {
        misuse(c.ctx.get(), "%s: %s at %#" PRIxPTR " is not aligned to %" PRIu64, c.symbol, what,
               r.lo, align);
        return CUBLASLT_INVALID_VALUE;
    }
    return CUBLASLT_OK;
}

static int check_operands(const call &c, const struct product &p, const struct cublaslt_algo &algo,
                          const stream &s)
{
    const uint64_t align = algo.data[6];
    struct cublaslt_preference_st chosen;
    for (int i = 0; i < 4; i++)
        chosen.align[i] = align >> 16 * i & 0xffff;
    chosen.workspace = algo.data[7];
    const struct cublaslt_algo expected = algo_of(p.desc, p.a, p.b, p.d, chosen);
    if (memcmp(&expected, &algo, sizeof algo) != 0) {
        misuse(c.ctx.get(), "%s: the algorithm was chosen for another product", c.symbol);
        return CUBLASLT_INVALID_VALUE;
    }
    int status = check_memory(c, "A", bytes_of(p.a, p.pa), chosen.align[0], s);
    if (!status)
        status = check_memory(c, "B", bytes_of(p.b, p.pb), chosen.align[1], s);
    if (!status)
        status = check_memory(c, "D", bytes_of(p.d, p.pd), chosen.align[3], s);
    if (!status && p.workspace.hi - p.workspace.lo < chosen.workspace)
        status = CUBLASLT_INVALID_VALUE;
    if (!status && chosen.workspace)
        status = check_memory(c, "the workspace", p.workspace, WORKSPACE_ALIGN, s);
    const range d = bytes_of(p.d, p.pd);
    if (!status && (d.overlaps(p.workspace) || d.overlaps(bytes_of(p.a, p.pa)) ||
                    d.overlaps(bytes_of(p.b, p.pb)))) {
        misuse(c.ctx.get(), "%s: D overlaps what is read", c.symbol);
        status = CUBLASLT_INVALID_VALUE;
    }
    return status;
}

} // namespace drv

#define ENTER_LT(need)                                                                             \
    drv::call c(__func__, need);                                                                   \
    if (c.refused)                                                                                 \
    return drv::status_of(c.error)

using namespace drv;

size_t cublasLtGetVersion(void)
{
    call c(__func__, anytime);
    return (size_t)S.opt.cublaslt;
}

const char *cublasLtGetStatusString(int status)
{
    call c(__func__, anytime);
    switch (status) {
    case CUBLASLT_OK:
        return "success";
    case CUBLASLT_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLASLT_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLASLT_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLASLT_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    case CUBLASLT_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    default:
        return "an internal operation failed";
    }
}

// --- objects ---

int cublasLtCreate(cublaslt_handle *handle)
{
    ENTER_LT(current);
    return make(handle, cublaslt_handle_st{c.ctx});
}

int cublasLtDestroy(cublaslt_handle handle)
{
    ENTER_LT(anytime | releases);
    return destroy(c, handle);
}

int cublasLtMatmulDescCreate(cublaslt_desc *desc, int compute, int scale)
{
    ENTER_LT(anytime);
    return make(desc, cublaslt_desc_st{compute, scale, {CUBLASLT_OP_N, CUBLASLT_OP_N}});
}

int cublasLtMatmulDescDestroy(cublaslt_desc desc)
{
    ENTER_LT(anytime | releases);
    return destroy(c, desc);
}

int cublasLtMatmulDescSetAttribute(cublaslt_desc desc, int attribute, const void *value,
                                   size_t bytes)
{
    ENTER_LT(anytime);
    if (!is_live(c, desc) || !value || bytes != sizeof(int32_t) ||
        (attribute != CUBLASLT_DESC_TRANS_A && attribute != CUBLASLT_DESC_TRANS_B))
        return CUBLASLT_INVALID_VALUE;
    memcpy(&desc->trans[attribute - CUBLASLT_DESC_TRANS_A], value, bytes);
    return CUBLASLT_OK;
}

int cublasLtMatrixLayoutCreate(cublaslt_layout *layout, int type, uint64_t rows, uint64_t cols,
                               int64_t pitch)
{
    ENTER_LT(anytime);
    if (!size_of(type) || !rows || !cols || pitch < (int64_t)rows)
        return CUBLASLT_INVALID_VALUE;
    return make(layout, cublaslt_layout_st{type, rows, cols, pitch});
}

int cublasLtMatrixLayoutDestroy(cublaslt_layout layout)
{
    ENTER_LT(anytime | releases);
    return destroy(c, layout);
}

int cublasLtMatmulPreferenceCreate(cublaslt_preference *preference)
{
    ENTER_LT(anytime);
    return make(preference, cublaslt_preference_st());
}

int cublasLtMatmulPreferenceDestroy(cublaslt_preference preference)
{
    ENTER_LT(anytime | releases);
    return destroy(c, preference);
}

int cublasLtMatmulPreferenceSetAttribute(cublaslt_preference preference, int attribute,
                                         const void *value, size_t bytes)
{
    ENTER_LT(anytime);
    if (!is_live(c, preference) || !value)
        return CUBLASLT_INVALID_VALUE;
    void *to = attribute == CUBLASLT_PREFER_WORKSPACE    ? (void *)&preference->workspace
               : attribute == CUBLASLT_PREFER_REDUCTIONS ? &preference->reductions
               : attribute >= CUBLASLT_PREFER_ALIGN_A && attribute <= CUBLASLT_PREFER_ALIGN_D
                   ? &preference->align[attribute - CUBLASLT_PREFER_ALIGN_A]
                   : nullptr;
    if (!to || bytes != (attribute == CUBLASLT_PREFER_WORKSPACE ? 8u : 4u))
        return CUBLASLT_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLASLT_OK;
}

// --- products ---

int cublasLtMatmulAlgoGetHeuristic(cublaslt_handle handle, cublaslt_desc desc, cublaslt_layout a,
                                   cublaslt_layout b, cublaslt_layout c_layout, cublaslt_layout d,
                                   cublaslt_preference preference, int n,
                                   struct cublaslt_choice *choice, int *n_found)
{
    ENTER_LT(anytime);
    for (const void *object :
         {(const void *)handle, (const void *)desc, (const void *)a, (const void *)b,
          (const void *)c_layout, (const void *)d, (const void *)preference})
        if (!is_live(c, object))
            return CUBLASLT_INVALID_VALUE;
    *n_found = 0;
    if (n < 1)
        return CUBLASLT_INVALID_VALUE;
    if (!agree(*desc, *a, *b, *d))
        return CUBLASLT_NOT_SUPPORTED;
    if (preference->reductions & CUBLASLT_REDUCE_IN_PLACE)
        misuse(c.ctx.get(), "%s: parts of a sum may be added in place, in any order", c.symbol);
    memset(choice, 0, sizeof *choice);
    choice->algo = algo_of(*desc, *a, *b, *d, *preference);
    choice->workspace_bytes = preference->workspace;
    choice->waves = 1;
    *n_found = 1;
    return CUBLASLT_OK;
}

int cublasLtMatmul(cublaslt_handle handle, cublaslt_desc desc, const void *alpha, const void *a,
                   cublaslt_layout a_layout, const void *b, cublaslt_layout b_layout,
                   const void *beta, const void *c_matrix, cublaslt_layout c_layout, void *d,
                   cublaslt_layout d_layout, const struct cublaslt_algo *algo, void *workspace,
                   size_t workspace_bytes, cu_stream stream)
{
    ENTER_LT(current);
    for (const void *object :
         {(const void *)handle, (const void *)desc, (const void *)a_layout, (const void *)b_layout,
          (const void *)c_layout, (const void *)d_layout})
        if (!is_live(c, object))
            return CUBLASLT_INVALID_VALUE;
    stream_ref s = find_stream(c, stream);
    if (!s || s->ctx != c.ctx || handle->ctx != c.ctx) {
        misuse(c.ctx.get(), "%s: handle, stream and current context are not of one device",
               c.symbol);
        return CUBLASLT_INVALID_VALUE;
    }
    if (*(const float *)beta != 0 || c_matrix != d || !algo ||
        !agree(*desc, *a_layout, *b_layout, *d_layout))
        return CUBLASLT_NOT_SUPPORTED;
    auto p = std::make_shared<struct product>(
        product{*desc,
                *a_layout,
                *b_layout,
                *d_layout,
                a,
                b,
                (float *)d,
                {(uintptr_t)workspace, (uintptr_t)workspace + workspace_bytes},
                *(const float *)alpha});
    int status = check_operands(c, *p, *algo, *s);
    if (status)
        return status;
    auto w = std::make_shared<work>();
    w->kind = work::matmul;
    w->symbol = c.symbol;
    w->pointers = {(uintptr_t)a, (uintptr_t)b, (uintptr_t)d, (uintptr_t)workspace};
    w->operands = p;
    return submit(c, s, w) ? (int)CUBLASLT_EXECUTION_FAILED : (int)CUBLASLT_OK;
}
