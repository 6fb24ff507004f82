/* gr_kv_print: the map of the cells and the table of sequences, for people. */
#include <string.h>

#include "kv/cells.h"

#define PER_LINE 64

static char symbol(const struct gr_kv *kv, uint32_t c)
{
    struct gr_cell cell = gr_kv_cell(kv, c);
    if (cell.n_seq != 1)
        return cell.n_seq ? '+' : '.';
    return cell.seq < 36 ? "0123456789abcdefghijklmnopqrstuvwxyz"[cell.seq] : '#';
}

/* The map of the cells [first, stop), at most a line of them, in groups of 16. */
static void map_line(const struct gr_kv *kv, uint32_t first, uint32_t stop,
                     char line[PER_LINE + PER_LINE / 16])
{
    uint32_t n = GR_MIN(PER_LINE, stop - first);
    char *p = line;
    for (uint32_t i = 0; i < n; i++) {
        if (i && i % 16 == 0)
            *p++ = ' ';
        *p++ = symbol(kv, first + i);
    }
    *p = 0;
}

static void print_same(uint32_t same, FILE *out)
{
    if (same == 1)
        fprintf(out, "%10s  the same once more\n", "");
    else if (same)
        fprintf(out, "%10s  the same %u times more\n", "", same);
}

/* Lines equal to the one before are counted, not printed: a large cache stays readable. */
static void print_map(const struct gr_kv *kv, const struct gr_kv_pool *pool, FILE *out)
{
    char line[PER_LINE + PER_LINE / 16], before[sizeof line] = "";
    uint32_t same = 0, stop = pool->base + kv->p.n_cell;
    for (uint32_t c = pool->base; c < stop; c += PER_LINE) {
        map_line(kv, c, stop, line);
        if (!strcmp(line, before)) {
            same++;
            continue;
        }
        print_same(same, out);
        fprintf(out, "%10u  %s\n", c, line);
        memcpy(before, line, sizeof line);
        same = 0;
    }
    print_same(same, out);
}

static void print_seq(const struct gr_kv *kv, int32_t s, FILE *out)
{
    const struct gr_kv_seq *q = &kv->seq[s];
    int32_t lo, hi;
    uint32_t shifted = gr_kv_seq_shifts(kv, s, &lo, &hi);
    fprintf(out, "%10d  %8u cells (%u shared), positions %d to %d\n", s, q->n,
            gr_kv_seq_shared(kv, s), gr_kv_cells_pos_min(kv, s), gr_kv_cells_pos_max(kv, s));
    if (shifted)
        fprintf(out, "%12s%8u wait for a shift by %d to %d\n", "", shifted, lo, hi);
    for (uint32_t i = 0; i < q->evicted.n; i++)
        fprintf(out, "%20s positions %d to %d evicted\n", "", q->evicted.r[i].lo,
                q->evicted.r[i].hi - 1);
}

static void print_head(const struct gr_kv *kv, FILE *out)
{
    fprintf(out, "KV cache: %u of %u cells used (the first %d)", kv->n_used, kv->n_all,
            (int)gr_kv_n_kv(kv));
    if (kv->p.n_kv_pool == 1)
        fprintf(out, ", head at %u", kv->pool[0].head);
    else
        fprintf(out, ", %u a sequence", kv->p.n_cell);
    if (kv->p.window > 0)
        fprintf(out, ", window %d", kv->p.window);
    fprintf(out,
            "\n%10s  0-9 a-z: in that sequence, #: in a later one, +: in several, "
            ".: free\n",
            "cell");
}

void gr_kv_print(const struct gr_kv *kv, FILE *out)
{
    print_head(kv, out);
    for (uint32_t s = 0; s < kv->p.n_kv_pool; s++)
        if (kv->pool[s].n_used || kv->p.n_kv_pool == 1)
            print_map(kv, &kv->pool[s], out);
    if (kv->n_used)
        fprintf(out, "%10s\n", "sequence");
    for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max; s++)
        if (kv->seq[s].n)
            print_seq(kv, s, out);
}
