/* The sequence operations of gpurun.h, forwarded to the cells. */
#include "engine/self_extend.h"
#include "engine/session.h"
#include "gr/status.h"

int gr_kv_seq_rm(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1)
{
    return gr_kv_cells_rm(s->kv, seq, p0, p1);
}

int gr_kv_seq_cp(struct gr_session *s, int32_t src, int32_t dst, int32_t p0, int32_t p1)
{
    return gr_kv_cells_cp(s->kv, src, dst, p0, p1);
}

int gr_kv_seq_keep(struct gr_session *s, int32_t seq)
{
    return gr_kv_cells_keep(s->kv, seq);
}

int gr_kv_seq_add(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1, int32_t delta)
{
    return gr_kv_cells_add(s->kv, seq, p0, p1, delta);
}

int gr_kv_seq_div(struct gr_session *s, int32_t seq, int32_t p0, int32_t p1, int32_t d)
{
    return gr_kv_cells_div(s->kv, seq, p0, p1, d);
}

void gr_kv_clear(struct gr_session *s)
{
    if (!s->running) /* a tap may not pull the cells from under its batch */
        gr_kv_cells_clear(s->kv);
}

int32_t gr_kv_seq_pos_min(const struct gr_session *s, int32_t seq)
{
    return gr_kv_cells_pos_min(s->kv, seq);
}

int32_t gr_kv_seq_pos_max(const struct gr_session *s, int32_t seq)
{
    return gr_kv_cells_pos_max(s->kv, seq);
}

uint32_t gr_kv_used(const struct gr_session *s)
{
    return gr_kv_n_used(s->kv);
}

void gr_kv_dump(const struct gr_session *s, FILE *out)
{
    gr_kv_print(s->kv, out);
}

int gr_self_extend(struct gr_session *s, struct gr_self_extend *se, int32_t *n_past)
{
    int32_t end = gr_kv_cells_pos_max(s->kv, 0) + 1;
    if (*n_past > end)
        return gr_fail(GR_E_INVALID, "Self-Extend: sequence 0 has positions below %d, not %d", end,
                       *n_past);
    return gr_self_extend_cells(s->kv, 0, se, n_past);
}
