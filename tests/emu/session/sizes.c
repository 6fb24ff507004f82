/* The lines about caches: one for each place that has any, which add up to what gr_session_size
 * says, wherever the layers and the caches are. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/session.h"
#include "support/tiny.h"
#include "tests/emu/session/emulator.h"

#define MIB 1048576.

/* ---- what was said ---- */

struct line {
    char where[48]; /* "EMU0", "rank 1 EMU1" */
    int n_layer, n_cell;
    bool window, state;
    double mib, k, v;
};

static struct line lines[64];
static int n_line;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void take(const char *text)
{
    struct line l = {.n_cell = 0};
    const char *kv = strstr(text, " KV buffer size = "), *rs = strstr(text, " RS buffer size = ");
    const char *at = kv ? kv : rs;
    if (!at)
        return;
    while (*text == ' ')
        text++;
    snprintf(l.where, sizeof l.where, "%.*s", (int)(at - text), text);
    l.state = rs != NULL, l.window = strstr(text, "layers with a window)") != NULL;
    int n = sscanf(at + 18, "%lf MiB ( %d %*s %d layers%*[^:]: %lf MiB, V (f16): %lf MiB", &l.mib,
                   &l.n_cell, &l.n_layer, &l.k, &l.v);
    cr_assert(n == (rs ? 3 : 5) && n_line < 64, "%d: %s", n, text);
    lines[n_line++] = l;
}

static void sink(enum gr_log_level level, const char *text, void *user)
{
    (void)level, (void)user;
    pthread_mutex_lock(&lock);
    take(text);
    pthread_mutex_unlock(&lock);
}

static const struct line *line_of(const char *where, bool state)
{
    for (int i = 0; i < n_line; i++)
        if (!strcmp(lines[i].where, where) && lines[i].state == state)
            return &lines[i];
    return NULL;
}

/* ---- sessions ---- */

struct way {
    const char *arch, *device; /* device: NULL = as the model's parameters have it */
    int32_t n_gpu;
    bool no_kv_offload;
    uint32_t n_seq;
    const char *where[3]; /* devices with layers that have keys and values */
    int n_layer[3];
};

static struct gr_model *open_model(const struct way *h)
{
    struct tiny t = tiny_default(gr_arch_find((struct gr_str){h->arch, strlen(h->arch)}));
    struct gr_model_params mp = gr_model_params_default();
    struct gr_model *m;
    tiny_set_layers(&t, 4);
    mp.n_gpu_layers = h->n_gpu, mp.device = h->device;
    const char *path = tiny_write(&t, NULL);
    cr_assert_eq(gr_model_open(&m, path, &mp), 0, "%s", gr_error());
    unlink(path);
    return m;
}

/* Lines are rounded to a hundredth of a MiB. */
static void add_up(const struct gr_session_size *size, const char *arch)
{
    double k = 0, v = 0, state = 0, most = 0.011 * n_line;
    for (int i = 0; i < n_line; i++) {
        k += lines[i].k, v += lines[i].v, state += lines[i].state ? lines[i].mib : 0;
        if (!lines[i].state) {
            cr_expect_float_eq(lines[i].mib, lines[i].k + lines[i].v, 0.011, "%s", arch);
            cr_expect_eq(lines[i].n_cell, (int)(lines[i].window ? size->n_cell_swa : size->n_cell));
        }
    }
    cr_expect(k + v + state > 10 * most, "%s: too little to tell", arch);
    cr_expect_float_eq(k, (double)size->k / MIB, most, "%s: K %g, %g", arch, k, size->k / MIB);
    cr_expect_float_eq(v, (double)size->v / MIB, most, "%s: V %g, %g", arch, v, size->v / MIB);
    cr_expect_float_eq(state, (double)size->state / MIB, most, "%s: states %g, %g", arch, state,
                       size->state / MIB);
}

static void check(const struct way *h)
{
    struct gr_model *m = open_model(h);
    struct gr_session_params p = gr_session_params_default();
    struct gr_session_size size;
    struct gr_session *s;
    int n = 0, n_kv = 0;
    p.n_ctx = 8192, p.n_threads = 1, p.n_ubatch = 32, p.no_kv_offload = h->no_kv_offload;
    p.n_seq_max = h->n_seq;
    n_line = 0;
    cr_assert_eq(gr_session_size(m, &p, &size), 0, "%s", gr_error());
    gr_log_set(sink, NULL);
    cr_assert_eq(gr_session_open(&s, m, &p), 0, "%s: %s", h->arch, gr_error());
    gr_log_set(NULL, NULL);
    add_up(&size, h->arch);
    for (; n < 3 && h->where[n]; n++) {
        const struct line *l = line_of(h->where[n], false);
        cr_expect(l && l->n_layer == h->n_layer[n], "%s, -ngl %d: %s has %d", h->arch, h->n_gpu,
                  h->where[n], l ? l->n_layer : -1);
    }
    for (int i = 0; i < n_line; i++)
        n_kv += !lines[i].state && !lines[i].window;
    cr_expect_eq(n_kv, n, "%s, -ngl %d, %s: %d lines", h->arch, h->n_gpu,
                 h->no_kv_offload ? "-nkvo" : "", n_kv);
    gr_session_close(&s);
    gr_model_close(&m);
}

Test(sizes, S2_11_a_line_for_each_place)
{
    static const struct way ways[] = {
        {"llama", NULL, 0, false, 1, {"CPU"}, {4}},
        {"llama", "none", 99, false, 1, {"CPU"}, {4}},
        {"llama", NULL, 99, false, 1, {"EMU0"}, {4}},
        {"llama", NULL, 3, false, 1, {"CPU", "EMU0"}, {2, 2}},
        {"llama", NULL, 99, true, 1, {"CPU"}, {4}},
        {"llama", NULL, 3, true, 1, {"CPU"}, {4}},
        {"llama", "EMU0,EMU0", 99, false, 1, {"rank 0 EMU0", "rank 1 EMU0"}, {3, 1}},
        {"llama", "EMU0,EMU0", 99, true, 1, {"rank 0 CPU", "rank 1 CPU"}, {3, 1}},
    };
    gr_cuda_load_slot = 1 << 20;
    for (size_t i = 0; i < GR_COUNT(ways); i++)
        check(&ways[i]);
}

/* Layers with a window and recurrent ones have lines of their own. */
Test(sizes, S2_11_other_kinds)
{
    static const struct way ways[] = {
        {"gemma2", NULL, 0, false, 1, {"CPU"}, {2}},
        {"gemma2", NULL, 3, false, 1, {"CPU", "EMU0"}, {1, 1}},
        {"jamba", NULL, 3, false, 40, {"CPU"}, {1}},
        {"jamba", NULL, 99, true, 40, {"CPU"}, {1}}, /* states are on the device all the same */
    };
    gr_cuda_load_slot = 1 << 20;
    static const int n_state[] = {0, 0, 2, 3}; /* layers with states on the device */
    for (size_t i = 0; i < GR_COUNT(ways); i++) {
        check(&ways[i]);
        const struct line *l = line_of("EMU0", true);
        cr_expect_eq(l ? l->n_layer : 0, n_state[i], "%zu: %d", i, l ? l->n_layer : 0);
    }
}
