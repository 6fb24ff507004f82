/* Any bytes as a GGUF file: refused in one line, or a model that keeps what the reader promises;
 * memory within bounds, all of it given back. One input in eight is printed too, and one in eight
 * is opened with a failing allocation first. */
#include <stdlib.h>

#include "base/alloc.h"
#include "gguf/gguf_impl.h"
#include "support/model_fault.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void print(const struct gr_gguf *g)
{
    static FILE *out;
    if (!out)
        out = fopen("/dev/null", "w");
    must(gr_gguf_print(g, out, false) == 0, "it can be printed");
    must(gr_gguf_print(g, out, true) == 0, "it can be printed as JSON");
}

/* Reads the file with allocation number 1 + n / 8 % 8 failing. */
static void starve(const uint8_t *p, size_t n)
{
    struct gr_gguf *g;
    gr_alloc_fail_at(1 + n / 8 % 8, 0);
    (void)gr_gguf_open_memory(&g, p, n, "fuzz");
    gr_alloc_fail_at(0, 0);
    gr_gguf_close(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct gr_gguf *g;
    size_t peak, before = gr_alloc_held(&peak);
    if (n % 8 == 1)
        starve(p, n);
    int rc = gr_gguf_open_memory(&g, p, n, "fuzz");
    gr_alloc_held(&peak);
    must(peak - before <= 8 * n + 4096, "memory for parsing is bounded by the size");
    must(rc == 0 || rc == GR_E_CORRUPT || rc == GR_E_UNSUPPORTED, "bad bytes are a bad file");
    must(!g == (rc != 0) && (rc == 0 || !strchr(gr_error(), '\n')), "a model, or one line");
    if (g) {
        const char *fault = model_fault(g, n);
        must(!fault, fault);
        if (n % 8 == 0)
            print(g);
    }
    gr_gguf_close(&g);
    must(gr_alloc_held(NULL) == before, "all memory is given back");
    return 0;
}
