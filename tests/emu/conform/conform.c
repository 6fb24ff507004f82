/* Launching a case and comparing what comes back. */
#include "tests/emu/conform/conform.h"

#include "cuda/build.h"

#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MODULES = 8 };

struct conform {
    struct gr_cuda_driver cu;
    cu_device device;
    cu_module module[MAX_MODULES];
    int n_module, cc;
    bool lost; /* an error that every later call has, too */
    cu_stream stream;
    char name[160], why[CONFORM_WHY];
};

int conform_fail(struct conform *c, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    vsnprintf(c->why, sizeof c->why, form, list);
    va_end(list);
    return 1;
}

static int check(struct conform *c, int result, const char *what)
{
    const char *text = NULL;
    if (result == CU_OK)
        return 0;
    c->lost |= result >= CU_ILLEGAL_ADDRESS;
    if (c->cu.error_string(result, &text) != CU_OK || !text)
        text = "unknown error";
    return conform_fail(c, "%s: error %d: %s", what, result, text);
}

int conform_same(struct conform *c, const void *got, const void *expected, size_t n, size_t bytes)
{
    const unsigned char *g = got, *e = expected;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(g + i * bytes, e + i * bytes, bytes) == 0)
            continue;
        char text[2][40] = {"", ""};
        for (size_t b = 0; b < bytes && b < 16; b++) {
            snprintf(text[0] + 2 * b, 3, "%02x", g[(i + 1) * bytes - 1 - b]);
            snprintf(text[1] + 2 * b, 3, "%02x", e[(i + 1) * bytes - 1 - b]);
        }
        return conform_fail(c, "element %zu of %zu is 0x%s, expected 0x%s", i, n, text[0], text[1]);
    }
    return 0;
}

static uint32_t other_inputs; /* SEED */

uint32_t conform_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u + 2 * other_inputs;
    return *state ^ *state >> 15 ^ *state << 17;
}
int conform_random_in(uint32_t *state, int lo, int hi)
{
    return lo + (int)(conform_random(state) % (uint32_t)(hi - lo + 1));
}

/* --- formats --- */

const struct conform_format conform_f16 = {10, -14, 15};
const struct conform_format conform_bf16 = {7, -126, 127};

double conform_value(const struct conform_format *f, uint16_t bits)
{
    const int fraction = bits & ((1 << f->fraction) - 1), sign = bits >> 15;
    const int field = (bits & 0x7fff) >> f->fraction, top = f->emax - f->emin + 2;
    double v;
    if (field == top)
        v = fraction ? NAN : INFINITY;
    else if (field == 0)
        v = ldexp(fraction, f->emin - f->fraction);
    else
        v = ldexp(fraction + (1 << f->fraction), field - 1 + f->emin - f->fraction);
    return sign ? -v : v;
}

uint16_t conform_bits(const struct conform_format *f, double value)
{
    if (isnan(value))
        return 0x7fff;
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const double v = fabs(value);
    const uint16_t infinity = (uint16_t)((f->emax - f->emin + 2) << f->fraction);
    if (isinf(v))
        return sign | infinity;
    int e = v > 0 ? ilogb(v) : f->emin;
    if (e < f->emin)
        e = f->emin;
    /* units of the last place at this exponent; rint rounds ties to even */
    const double units = rint(ldexp(v, f->fraction - e));
    /* a normal number has units in [2^fraction, 2^(fraction+1)): its leading one counts as one of
     * the exponent field, and so does a carry out of the fraction */
    const double bits = units + ldexp(e - f->emin, f->fraction);
    return sign | (uint16_t)(e > f->emax || bits > infinity ? infinity : bits);
}

/* --- launches --- */

static int encode_map(struct conform *c, const struct conform_map *m, cu_pointer in, cu_pointer out,
                      struct gr_tensor_map *map)
{
    enum { UINT16 = 1, PROMOTE_NONE = 0, FILL_ZERO = 0 };
    static const uint32_t ones[3] = {1, 1, 1};
    const int swizzle = m->swizzle == 128 ? 3 : m->swizzle == 64 ? 2 : m->swizzle == 32 ? 1 : 0;
    return check(c,
                 c->cu.tensor_map(map, UINT16, (unsigned)m->rank,
                                  (void *)(uintptr_t)(m->of_out ? out : in), m->dim, m->stride,
                                  m->box, ones, 0, swizzle, PROMOTE_NONE, FILL_ZERO),
                 "tensor_map");
}

static int find(struct conform *c, const char *name, unsigned smem, cu_function *f)
{
    int result = CU_NOT_FOUND;
    for (int i = 0; i < c->n_module && result == CU_NOT_FOUND; i++)
        result = c->cu.module_function(f, c->module[i], name);
    if (check(c, result, name))
        return 1;
    return check(c, c->cu.function_set(*f, CU_FUNC_MAX_DYNAMIC_SMEM, (int)smem), name);
}

static int launch(struct conform *c, const char *kernel, const struct conform_launch *l, bool early,
                  struct conform_args *args)
{
    enum { PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
    struct cu_launch_attribute attribute = {.id = PROGRAMMATIC_STREAM_SERIALIZATION,
                                            .value.value = 1};
    struct cu_launch how = {.grid = {l->blocks, 1, 1},
                            .block = {l->threads, 1, 1},
                            .smem = l->smem,
                            .stream = c->stream,
                            .attribute = &attribute,
                            .n_attribute = early};
    cu_function f;
    if (find(c, kernel, l->smem, &f))
        return 1;
    void *params[] = {args};
    return check(c, c->cu.launch(&how, f, params, NULL), kernel);
}

static int run_on(struct conform *c, const struct conform_launch *l, cu_pointer in, cu_pointer out)
{
    struct conform_args args = {.in = (const void *)(uintptr_t)in, .out = (void *)(uintptr_t)out};
    memcpy(args.p, l->p, sizeof args.p);
    if (l->map && encode_map(c, l->map, in, out, &args.map))
        return 1;
    if (l->in_bytes && check(c, c->cu.copy_in(in, l->in, l->in_bytes, c->stream), "copy_in"))
        return 1;
    if (check(c, c->cu.copy_in(out, l->out, l->out_bytes, c->stream), "copy_in"))
        return 1;
    if (launch(c, l->kernel, l, false, &args) ||
        (l->then && launch(c, l->then, l, c->cc >= 90, &args)))
        return 1;
    return check(c, c->cu.copy_out(l->out, out, l->out_bytes, c->stream), "copy_out") ||
           check(c, c->cu.stream_sync(c->stream), l->kernel);
}

int conform_run(struct conform *c, const struct conform_launch *l)
{
    cu_pointer in = 0, out = 0;
    int failed = check(c, c->cu.alloc(&in, l->in_bytes ? l->in_bytes : 16), "alloc") ||
                 check(c, c->cu.alloc(&out, l->out_bytes), "alloc") || run_on(c, l, in, out);
    if (in)
        c->cu.free(in);
    if (out)
        c->cu.free(out);
    return failed;
}

/* --- the device --- */

static int check_version(struct conform *c)
{
    int version, toolkit = gr_cuda_build.toolkit;
    if (check(c, c->cu.driver_version(&version), "driver_version"))
        return 1;
    return version / 1000 >= toolkit / 1000
               ? 0
               : conform_fail(c, "the driver is of CUDA %d.%d, the kernels here are of nvcc %d.%d",
                              version / 1000, version % 1000 / 10, toolkit / 1000,
                              toolkit % 1000 / 10);
}

static int load_images(struct conform *c)
{
    if (check_version(c))
        return 1;
    for (int i = 0; i < gr_cuda_build.n_image && i < MAX_MODULES; i++) {
        int result = c->cu.module_load(&c->module[c->n_module], gr_cuda_build.image[i].data);
        if (result == CU_NO_BINARY_FOR_GPU) /* wgmma, and not compute capability 9.0 */
            continue;
        if (check(c, result, gr_cuda_build.image[i].name))
            return 1;
        c->n_module++;
    }
    if (gr_cuda_build.n_image)
        return c->n_module ? 0 : conform_fail(c, "no kernel here is for this device");
    c->n_module = 1; /* on the emulated device any image stands for all kernels */
    return check(c, c->cu.module_load(&c->module[0], ""), "an empty image");
}

static int open_driver(struct conform *c, const char *library)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return conform_fail(c, "%s", dlerror());
#define FN(name, symbol, params)                                                                   \
    *(void **)&c->cu.name = dlsym(handle, #symbol);                                                \
    if (!c->cu.name)                                                                               \
        return conform_fail(c, "%s: no " #symbol, library);
#include "cuda/driver.def"
#undef FN
    return 0;
}

static int open_device(struct conform *c)
{
    cu_context context;
    int major, minor;
    char name[128];
    if (check(c, c->cu.init(0), "init") ||
        check(c, c->cu.device_get(&c->device, 0), "device_get") ||
        check(c, c->cu.device_name(name, sizeof name, c->device), "device_name") ||
        check(c, c->cu.device_attribute(&major, CU_ATTR_CC_MAJOR, c->device), "attribute") ||
        check(c, c->cu.device_attribute(&minor, CU_ATTR_CC_MINOR, c->device), "attribute") ||
        check(c, c->cu.context_retain(&context, c->device), "context_retain") ||
        check(c, c->cu.context_set(context), "context_set") ||
        check(c, c->cu.stream_create(&c->stream, CU_STREAM_NON_BLOCKING), "stream_create"))
        return 1;
    c->cc = 10 * major + minor;
    snprintf(c->name, sizeof c->name, "device %s, compute capability %d.%d", name, major, minor);
    return 0;
}

int conform_open(struct conform **out, const char *library, uint32_t seed)
{
    static struct conform c;
    *out = &c;
    other_inputs = seed;
    return open_driver(&c, library) || open_device(&c) || load_images(&c);
}

void conform_close(struct conform *c)
{
    for (int i = 0; i < c->n_module; i++)
        (void)c->cu.module_unload(c->module[i]);
    (void)c->cu.stream_destroy(c->stream);
    (void)c->cu.context_set(NULL);
    (void)c->cu.context_release(c->device);
}

struct conform_state conform_state(const struct conform *c)
{
    return (struct conform_state){.cc = c->cc, .lost = c->lost, .name = c->name, .why = c->why};
}
