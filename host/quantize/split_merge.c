/* gr_split_file and gr_merge_file: the same tensors in several files, or in one. */
#include <inttypes.h>

#include "base/checked.h"
#include "base/log.h"
#include "gr/status.h"
#include "quantize/rewrite.h"

/* Assigns tensors to parts in order: a new part begins when the next tensor would exceed its number
 * of tensors or bytes. */
static int cut(struct gr_rewrite *r, const struct gr_split_params *params)
{
    uint64_t n = 0, bytes = 0;
    uint32_t part = 0;
    for (uint64_t i = 0; i < gr_gguf_n_tensor(r->in); i++) {
        uint64_t size = GR_PAD(gr_gguf_tensor_at(r->in, i)->bytes, GR_GGUF_DEFAULT_ALIGN);
        bool full =
            (params->max_tensors && n == params->max_tensors) ||
            (params->max_bytes && size > params->max_bytes - GR_MIN(bytes, params->max_bytes));
        if (n && full)
            part++, n = 0, bytes = 0;
        n++, bytes += size;
        r->part[i] = part;
    }
    r->n_part = part + 1;
    if (part < UINT16_MAX)
        return 0;
    return gr_fail(GR_E_INVALID, "%s: %" PRIu32 " parts; at most 65535 are possible",
                   gr_gguf_path(r->in, 0), part + 1);
}

int gr_split_file(const char *in, const char *prefix, const struct gr_split_params *params)
{
    struct gr_gguf *g;
    struct gr_rewrite r = {0};
    int e = gr_gguf_open(&g, in, false);
    if (!e)
        e = gr_rewrite_init(&r, g, prefix);
    if (!e)
        e = cut(&r, params);
    if (!e && r.n_part == 1)
        e = gr_fail(GR_E_INVALID,
                    "%s: its %" PRIu64
                    " tensors fit into one part, there is nothing to split; a smaller "
                    "--split-max-tensors or --split-max-size makes several",
                    gr_gguf_path(g, 0), gr_gguf_n_tensor(g));
    r.dry_run = params->dry_run, r.overwrite = params->overwrite;
    for (uint64_t i = 0; !e && i < gr_gguf_n_tensor(g); i++)
        if (i + 1 == gr_gguf_n_tensor(g) || r.part[i + 1] != r.part[i])
            gr_log(GR_LOG_INFO, "part %" PRIu32 " of %" PRIu32 ": to tensor %" PRIu64,
                   r.part[i] + 1, r.n_part, i + 1);
    if (!e)
        e = gr_rewrite_run(&r);
    gr_rewrite_fini(&r);
    gr_gguf_close(&g);
    return e;
}

int gr_merge_file(const char *in, const char *out, bool overwrite)
{
    struct gr_gguf *g;
    struct gr_rewrite r = {0};
    int e = gr_gguf_open(&g, in, false);
    if (!e && gr_gguf_n_part(g) == 1)
        e = gr_fail(GR_E_INVALID, "%s is one whole file already, there is nothing to merge", in);
    if (!e)
        e = gr_rewrite_init(&r, g, out);
    r.n_part = 1, r.overwrite = overwrite;
    if (!e)
        e = gr_rewrite_run(&r);
    gr_rewrite_fini(&r);
    gr_gguf_close(&g);
    return e;
}
