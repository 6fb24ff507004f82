#include <string.h>

#include "base/checked.h"
#include "kv/cells.h"

#define PER_LINE 64

static char symbol(const struct gr_kv *kv, uint32_t c)
{
    struct gr_cell cell = gr_kv_cell(kv, c);
    if (cell.n_seq != 1)
        return cell.n_seq ? '+' : '.';
    return cell.seq < 36 ? "0123456789abcdefghijklmnopqrstuvwxyz"[cell.seq] : '#';
}

/* The map of the cells from `first` on, in groups of 16. */
static void map_line(const struct gr_kv *kv, uint32_t first, char line[PER_LINE + PER_LINE / 16])
{
    uint32_t n = GR_MIN(PER_LINE, kv->p.n_cell - first);
    char *p = line;
    for (uint32_t i = 0; i < n; i++) {
        if (i && i % 16 == 0)
            *p++ = ' ';
        *p++ = symbol(kv, first + i);
    }
    *p = 0;
}

/* Lines equal to the one before are counted instead of printed, so that a large cache stays
 * readable. */
static void print_map(const struct gr_kv *kv, FILE *out)
{
    char line[PER_LINE + PER_LINE / 16], before[sizeof line] = "";
    uint32_t same = 0;
    for (uint32_t c = 0; c < kv->p.n_cell; c += PER_LINE) {
        map_line(kv, c, line);
        if (!strcmp(line, before)) {
            same++;
            continue;
        }
        if (same)
            fprintf(out, "%10s  the same %u times more\n", "", same);
        fprintf(out, "%10u  %s\n", c, line);
        memcpy(before, line, sizeof line);
        same = 0;
    }
    if (same)
        fprintf(out, "%10s  the same %u times more\n", "", same);
}

static void print_seq(const struct gr_kv *kv, int32_t s, FILE *out)
{
    uint32_t shared = 0, shifted = 0;
    int32_t lo = 0, hi = 0;
    for (uint32_t c = 0; c < kv->end; c++)
        if (gr_kv_has(kv, c, s)) {
            int32_t d = kv->delta[c];
            lo = shifted && d ? GR_MIN(lo, d) : shifted ? lo : d;
            hi = shifted && d ? GR_MAX(hi, d) : shifted ? hi : d;
            shared += kv->n_seq[c] > 1, shifted += d != 0;
        }
    fprintf(out, "%10d  %8u cells (%u shared), positions %d to %d", s, kv->seq[s].n, shared,
            kv->seq[s].min, kv->seq[s].max);
    if (shifted)
        fprintf(out, ", %u waiting for a shift by %d to %d", shifted, lo, hi);
    fputc('\n', out);
}

void gr_kv_print(const struct gr_kv *kv, FILE *out)
{
    fprintf(out, "KV cache: %u of %u cells used, %d to look at, the next search begins at %u\n",
            kv->n_used, kv->p.n_cell, (int)gr_kv_n_kv(kv), kv->head);
    fprintf(out,
            "%10s  0-9 a-z: in that sequence alone, #: in a later one, +: in several, .: free\n",
            "cell");
    print_map(kv, out);
    if (kv->n_used)
        fprintf(out, "%10s\n", "sequence");
    for (int32_t s = 0; s < (int32_t)kv->p.n_seq_max; s++)
        if (kv->seq[s].n)
            print_seq(kv, s, out);
}
